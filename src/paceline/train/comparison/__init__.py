"""Compares the split model with the whole one, once, on the first batch of a run on several ranks."""
