"""Sharded datasets and a loader that keeps the device fed. There so far: the order in which samples come."""
