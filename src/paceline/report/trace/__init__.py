"""The report of profiler captures, as HTML, JSON, Markdown and terminal output."""
