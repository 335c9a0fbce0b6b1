"""The DataLoader: the wait for batches, and the work of its workers."""
