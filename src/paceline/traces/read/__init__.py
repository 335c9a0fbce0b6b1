"""Reads files of PyTorch's profiler and of Nsight Systems, and returns them as captures."""
