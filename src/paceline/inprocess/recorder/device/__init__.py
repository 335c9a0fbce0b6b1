"""The device of a training process: its clock, its events and its readings."""
