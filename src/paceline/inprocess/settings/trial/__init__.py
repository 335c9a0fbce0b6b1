"""Patches that a trial needs besides the recipe: step control, checksums, fixed random draws."""
