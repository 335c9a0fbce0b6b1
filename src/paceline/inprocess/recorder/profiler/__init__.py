"""Windows of torch's profiler, and captures of chosen steps."""
