"""The report of `paceline compare`: two runs beside each other, as HTML, JSON, Markdown and terminal output."""
