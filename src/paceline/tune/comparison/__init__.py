"""A/B comparison of two recipes: alternating blocks of steps, and the statistics of their ratio."""
