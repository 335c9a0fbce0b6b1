"""The report of `paceline compare`: two runs side by side, as HTML, JSON, Markdown and terminal output."""
