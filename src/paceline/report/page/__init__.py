"""The sections of the HTML report, one file each: a diagnosis in, markup out, None where there is nothing to show.

`markup` makes elements and escapes every string; `axis` and `chart` draw. Drawings are SVG without text,
stretched to the width there is; the text beside them is HTML, so that it stays the same size on any screen.
"""
