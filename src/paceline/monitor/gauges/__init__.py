"""Gauges beside the program: readings of the host and its GPUs, one JSON line about every second."""
