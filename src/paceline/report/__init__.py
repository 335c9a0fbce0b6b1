"""The reports: a package for each verb, with a module for each output. They format results and compute nothing.

The sections of the HTML page of one verb are in its package; `page` has the parts that several pages share.
"""
