"""Reading of samples on several ranks: each rank reads its rows of a batch, unless reading changes the dataset."""
