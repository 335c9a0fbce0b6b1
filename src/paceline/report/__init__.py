"""The reports: a package for each command, with a module for each output. They format results and compute nothing.

The sections of a command's HTML page are in its package; `page` has the parts that several pages share.
"""
