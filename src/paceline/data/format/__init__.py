"""The files of a dataset: shards, their indexes, columns, images and tokens, and the folders they are read from."""
