"""The device: its clock, its events and its readings."""
