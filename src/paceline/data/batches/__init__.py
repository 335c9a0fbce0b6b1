"""Batches: made from samples, with replacements for samples that are damaged or lost."""
