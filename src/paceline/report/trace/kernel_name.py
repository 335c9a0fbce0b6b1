"""The HTML of kernel names. Long names, such as those of C++ templates, are shortened and open on a click."""

from __future__ import annotations

from paceline.report.page.markup import Markup, details, element

_SHOWN, _END = 96, 24


def kernel_name(name: str) -> Markup:
    """Return the name of a kernel, operator or source line as HTML; a long name is shortened and opens on a click."""
    if len(name) <= _SHOWN + _END:
        return element("code", name)
    return details(element("code", f"{name[:_SHOWN]}…{name[-_END:]}"), element("code", name), class_="long")
