"""Weights that are sharded over the ranks: FSDP2 at the first call, operators of the program, and copies."""
