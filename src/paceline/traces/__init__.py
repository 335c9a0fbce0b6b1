"""Profiler captures (Kineto JSON, Nsight SQLite): what GPUs did, as columns of integer nanoseconds."""
