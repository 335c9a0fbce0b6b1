"""Equivalence checks: whether training computes the same results under two recipes."""
