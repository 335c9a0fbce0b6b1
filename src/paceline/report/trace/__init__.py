"""The report of profiler captures (recorded traces), as HTML, JSON, Markdown and terminal output."""
