"""The analysis of a run's record: phases, loader, loss, devices and ranks. The rules use its results."""
