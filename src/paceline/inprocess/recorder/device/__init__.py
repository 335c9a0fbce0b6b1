"""The device (CPU or GPU) of a training process: its clock, its timing events and its readings."""
