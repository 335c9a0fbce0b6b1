"""One file per axis of a layout; `paceline.train.arrange` puts them together."""
