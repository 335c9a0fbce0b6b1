"""The reports: a package for each command, with a module for each kind of output. Reports only format results.

The sections of a command's HTML page are in its package; `page` has the parts that the pages of several commands share.
"""
