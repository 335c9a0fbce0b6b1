"""What a diagnosis looks like: one file per output. Reports format a `Diagnosis` and compute nothing.

`terminal` prints a few lines, `html` makes one self-contained file out of the sections in `page/`,
`json_run` and `markdown` are for programs and pull requests. `words` and `phases` hold what they share.
"""
