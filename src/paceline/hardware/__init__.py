"""What machines are and can do: GPUs and instances as data files, this host, its links."""
