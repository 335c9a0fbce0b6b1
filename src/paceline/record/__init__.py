"""The run on disk: what is written, by whom, and how it is read back.

`layout` is the contract (binary rows, file names); it uses the standard library only, because the
program that is watched writes through it. `run` holds the frozen data that readers hand out.
"""
