"""Isolation of a trial: where its files go, and what it may reach over the network."""
