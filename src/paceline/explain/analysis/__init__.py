"""From the record of a run to its breakdown: phases, loader, loss, devices, ranks. The rules read the results."""
