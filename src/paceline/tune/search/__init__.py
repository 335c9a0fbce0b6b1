"""The search for the best recipe: candidates, trials, decisions, and the result."""
