"""Reads the architecture of a model: from a name, numbers, a config file, a module or a running program."""
