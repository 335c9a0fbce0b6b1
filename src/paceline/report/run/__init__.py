"""The report of a run, as HTML, JSON, Markdown and terminal output, and the list of all runs."""
