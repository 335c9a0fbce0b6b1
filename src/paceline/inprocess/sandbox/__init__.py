"""Isolation of a trial: the files that it writes and the network that it can reach."""
