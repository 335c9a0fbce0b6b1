"""What runs beside the user's program: supervision of its processes, gauges of the host and its GPUs."""
