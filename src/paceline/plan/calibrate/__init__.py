"""The calibration of a machine: its measurement, its profile, and predictions from the profile."""
