"""Paceline: make PyTorch training as fast and as cheap as the hardware allows, and prove it."""

__version__ = "0.1.0.dev0"
