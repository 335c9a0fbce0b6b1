"""Weights that are split over the ranks: FSDP2 at the first call, operators of the program, and copies."""
