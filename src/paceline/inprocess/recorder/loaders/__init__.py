"""Record the time that training waits for batches of a DataLoader, and the work of its workers."""
