"""The timeline of captures: rows of events that zoom down to single kernels; without JavaScript, charts of utilization.

The page contains all events in a packed form. Its script draws only visible events, so a million events stay usable.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core import units
from paceline.report import words
from paceline.report.page.chart import legend
from paceline.report.page.markup import Markup, element, section
from paceline.traces.analyze.timeline import GPU, PackedTimelines, TimelineData
from paceline.traces.intervals import Ns, length_before, union_of

COLOURS = {
    "compute": "forward", "communication": "communication", "copy": "transfer", "step": "evaluation",
    "loader": "data_wait", "waits": "optimizer", "launch": "other",
}  # fmt: skip
_TITLES = {
    "compute": "compute", "communication": "communication", "copy": "copies", "step": "steps",
    "loader": "fetching batches", "waits": "calls that wait for the GPU", "launch": "launches",
}  # fmt: skip
_BINS = 400
_HELP = (
    "Drag to move the view. Zoom with the mouse wheel, with + and -, or with a double-click. Point at an event "
    "to see its name."
)


def timeline(gallery: TimelineData | None) -> Markup | None:
    """Return the section with the timelines of unusual ranks; None without any."""
    if gallery is None:
        return None
    made = gallery.packed
    events = sum(count for _, lanes in made.ranks for _, _, count in lanes)
    shown = f"{words.count(events, 'event')} of {words.count(len(made.ranks), 'rank')}"
    more = (
        f", chosen because they are unusual; {gallery.left_out:,} more ranks are not shown" if gallery.left_out else ""
    )
    text = f"{shown}{more}; {units.seconds(made.span_ns / 1e9)} in all."
    return section(
        "timeline",
        "Timeline",
        element("p", text, " ", element("span", _HELP, class_="scripted"), class_="quiet"),
        legend([(COLOURS[name], _TITLES[name]) for name in COLOURS if any(class_ == name for _, class_ in made.names)]),
        _tools(),
        element("div", *_lanes(made), id="lanes"),
        element("script", Markup(_data(made)), type="text/plain", id="events"),
    )


def _tools() -> Markup:
    buttons = [("out", "Zoom out", "−"), ("in", "Zoom in", "+"), ("all", "Show everything", "everything")]
    made = [element("button", text, type="button", data_zoom=name, aria_label=label) for name, label, text in buttons]
    search = element(
        "input", type="search", id="find", placeholder="find a kernel by its name", aria_label="Find a kernel"
    )
    return element("div", *made, search, element("span", id="found", class_="quiet"), class_="tools scripted")


def _data(made: PackedTimelines) -> str:
    """Return the header and the packed events as base64 text, which cannot contain the end of a script element."""
    names = [[name, class_] for name, class_ in made.names]
    head = {"unit_ns": made.unit_ns, "span_ns": made.span_ns, "names": names, "colours": COLOURS, "ranks": made.ranks}
    packed = (base64.b64encode(part).decode() for part in (json.dumps(head).encode(), made.data))
    return " ".join(packed)


# -- without a script ------------------------------------------------------------------------------------


def _lanes(made: PackedTimelines) -> list[Markup]:
    numbers = np.frombuffer(zlib.decompress(made.data), "<u4")
    classes = np.array([list(COLOURS).index(class_) for _, class_ in made.names])
    at, found = 0, []
    for title, lanes in made.ranks:
        found.append(element("h3", title))
        for lane, kind, count in lanes:
            starts, lasted, names = (numbers[at + count * i : at + count * (i + 1)].astype(np.int64) for i in range(3))
            at += 3 * count
            busy = _busy(np.cumsum(starts), lasted, classes[names], made)
            drawn = element("div", _strip(busy, f"{title}, {lane}"), class_="strip", data_kind=kind)
            found.append(element("div", element("span", lane), drawn, class_="lane" if kind == GPU else "lane host"))
    return found


def _busy(starts: Ns, lasted: Ns, classes: NDArray[np.int64], made: PackedTimelines) -> NDArray[np.float64]:
    """Return the share of each time bin in which events of each class ran, of shape (classes, bins)."""
    span = max(1, made.span_ns // made.unit_ns)
    edges = np.linspace(0, span, _BINS + 1).astype(np.int64)
    found = np.zeros((len(COLOURS), _BINS))
    for class_ in np.unique(classes):
        own = classes == class_
        taken = np.diff(length_before(union_of(starts[own], starts[own] + lasted[own]), edges))
        found[class_] = taken / np.maximum(np.diff(edges), 1)
    return found


def _strip(busy: NDArray[np.float64], label: str) -> Markup:
    """Return the utilization of one row of the timeline as stacked columns, with one colour for each class."""
    marks: list[Markup] = []
    floor = np.zeros(_BINS)
    for class_, row in zip(COLOURS, busy, strict=True):
        if row.any():
            top = np.minimum(floor + row, 1.0)
            marks.append(element("path", d=_columns(floor, top), class_=COLOURS[class_]))
            floor = top
    return element(
        "svg",
        *marks,
        viewBox=f"0 0 {_BINS} 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"How busy: {label}",
    )


def _columns(floor: NDArray[np.float64], top: NDArray[np.float64]) -> str:
    heights: Sequence[tuple[int, int]] = [
        (round(100 - 100 * high), round(100 - 100 * low)) for low, high in zip(floor, top, strict=True)
    ]
    return "".join(f"M{at} {low}V{high}h1V{low}z" for at, (high, low) in enumerate(heights) if high < low) or "M0 0"
