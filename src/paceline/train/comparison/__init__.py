"""Compares the split model with the unsplit one, once, on the first batch of a run on several ranks."""
