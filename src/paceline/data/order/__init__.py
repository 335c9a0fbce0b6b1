"""The order of samples in an epoch, the part of it that each rank takes, and the position in it."""
