"""Makes batches from samples, and replaces samples that are damaged or lost."""
