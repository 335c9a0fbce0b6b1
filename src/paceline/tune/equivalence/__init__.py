"""Equivalence checks: whether training computes the same under two recipes."""
