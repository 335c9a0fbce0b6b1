"""Run records on disk: the file formats, the writer and the readers.

`layout` defines the binary rows and file names. It imports only the standard library, because the watched program
writes through it. `run` defines the frozen data classes that the readers return.
"""
