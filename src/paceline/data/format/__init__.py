"""The files of a data set: shards, their indexes, columns, images and tokens. Where these files are read from."""
