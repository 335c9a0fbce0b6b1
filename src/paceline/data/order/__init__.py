"""The order of samples in an epoch, the samples that each rank takes, and the position of a loader in the order."""
