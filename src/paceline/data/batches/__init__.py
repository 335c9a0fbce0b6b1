"""Makers of batches, and the replacement of samples that are damaged or lost."""
