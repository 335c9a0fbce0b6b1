"""Code that runs beside the user's program: supervision of its processes, and gauges of the host and its GPUs."""
