"""Batches of a run: how they are read, split over ranks and micro-batches, and continued after a resume."""
