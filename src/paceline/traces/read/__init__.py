"""Reads files of PyTorch's profiler and of Nsight Systems as captures."""
