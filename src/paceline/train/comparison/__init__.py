"""Compares the split model with the whole model, once, on the first batch of a run on several ranks."""
