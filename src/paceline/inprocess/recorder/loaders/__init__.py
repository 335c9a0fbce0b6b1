"""Record how long training waits for batches of a DataLoader, and what its workers do."""
