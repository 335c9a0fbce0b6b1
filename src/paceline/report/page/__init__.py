"""The parts of HTML pages that several reports share: elements, charts, axes and common sections.

`markup` makes elements and escapes every string; `axis` and `chart` draw. Drawings are SVG without text,
stretched to the width there is; the text beside them is HTML, so that it stays the same size on any screen.
"""
