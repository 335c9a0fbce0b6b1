"""The loader: its settings, its threads and processes, the tuning of their number, and copies to a device."""
