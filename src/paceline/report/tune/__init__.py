"""The report of `paceline tune`, as HTML, JSON and terminal output."""
