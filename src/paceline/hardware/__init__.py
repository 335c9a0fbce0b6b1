"""The machine: GPUs and instances (data files), this host, its control groups and its operating system."""
