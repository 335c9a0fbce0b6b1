"""Parts of HTML pages that several reports share: elements, charts, axes and common sections.

`markup` creates elements and escapes every string; `axis` and `chart` draw. Drawings are SVG without text,
stretched to the available width. Labels are HTML, so that their size does not change with the width.
"""
