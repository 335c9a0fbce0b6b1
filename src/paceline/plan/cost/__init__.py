"""Formulas for the cost of a training configuration: memory, time per step, FLOPs and money."""
