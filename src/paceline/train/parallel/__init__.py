"""One module for each axis and mode of a layout; `paceline.train.arrange` applies them to a model."""
