"""Files of PyTorch's profiler and of Nsight Systems, read as captures."""
