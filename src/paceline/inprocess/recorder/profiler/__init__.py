"""Windows of torch's profiler, and captures of selected steps."""
