"""What ranks compare: the data sets that they read, calls with all rows and with a part, and the trained weights."""
