"""Comparisons: datasets and weights between ranks, and calls of a model with all rows and with a part of them."""
