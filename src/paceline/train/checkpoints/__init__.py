"""Checkpoints of a run that any layout can load, and files with the weights of a whole model."""
