"""The name of a kernel. C++ templates have names of a thousand characters, so long ones open on a click."""

from __future__ import annotations

from paceline.report.page.markup import Markup, details, element

_SHOWN, _END = 96, 24


def kernel_name(name: str) -> Markup:
    """Make the name of a kernel, an operator or a line; of a long one its beginning and end, with the whole below."""
    if len(name) <= _SHOWN + _END:
        return element("code", name)
    return details(element("code", f"{name[:_SHOWN]}…{name[-_END:]}"), element("code", name), class_="long")
