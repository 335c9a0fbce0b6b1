"""Readings of the hosts and their devices during the run, compared with their limits."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.model import Diagnosis, GaugeSeries
from paceline.report.page.axis import Axis
from paceline.report.page.chart import Frame, Series, across, hover_data, legend, line, plot
from paceline.report.page.markup import Markup, details, element, join, section
from paceline.report.page.thin import extremes
from paceline.report.words import count, finite, quantity

MAX_POINTS = 120  # per line
MIN_READINGS = 2  # least number of readings for a line
MAX_LINES = 3  # lines per panel
MAX_PANELS = 60  # panels per page
WORDS = {"cpu": "CPU", "ram": "RAM", "gpu": "GPU", "rss": "memory of the process", "io": "I/O"}


def gauges(diagnosis: Diagnosis) -> Markup | None:
    """Return the section with a small chart for each kind of reading, by host; None without readings."""
    panels = [group for group in _grouped(diagnosis.gauges) if _known(group)][:MAX_PANELS]
    if not panels:
        return None
    hosts = list(dict.fromkeys(group[0].host for group in panels))
    by_host = {host: [group for group in panels if group[0].host == host] for host in hosts}
    parts = [_host(host, by_host[host], alone=len(hosts) == 1, first=i == 0) for i, host in enumerate(hosts)]
    return section("gauges", "Hosts and devices", *parts)


def _host(host: str, groups: Sequence[Sequence[GaugeSeries]], *, alone: bool, first: bool) -> Markup:
    panels = element("div", *(_panel(group) for group in groups), class_="panels")
    if alone:
        return join((element("p", f"Readings of the host {host}.", class_="quiet"), panels))
    title = f"{host}, {count(len(groups), 'reading')}"
    return details(title, panels, open_=first)


def _grouped(series: Sequence[GaugeSeries]) -> list[list[GaugeSeries]]:
    """Return the readings grouped into charts by host, unit and the first word of their names (as in ``cpu_own``)."""
    groups: dict[tuple[str, str, str], list[GaugeSeries]] = {}
    for i, one in enumerate(series):
        kind, _, rest = one.name.partition("_")
        groups.setdefault((one.host, one.unit, kind if rest else f"{i}"), []).append(one)
    return [group[:MAX_LINES] for group in groups.values()]


def _known(group: Sequence[GaugeSeries]) -> bool:
    """Return whether at least one series of a group has enough readings to draw."""
    return any(sum(finite(value) is not None for value in one.values) >= MIN_READINGS for one in group)


def _panel(group: Sequence[GaugeSeries]) -> Markup:
    limit = next((one.limit for one in group if one.limit is not None), None)
    kept = [_thinned(one) for one in group]
    frame = _frame(kept, limit)
    lines = [line(frame, one.seconds, one.values, f"line-{i}") for i, one in enumerate(kept)]
    marks = [across(frame, limit, "limit"), *lines] if limit is not None else lines
    drawing = plot(
        frame,
        *marks,
        label=f"{_title(group)}: {_reading(group, limit)}",
        hover=_hover(kept),
        size="small",
        ticks=(3, 2),
    )
    caption = element("figcaption", element("b", _title(group)), element("span", _reading(group, limit)))
    key = legend([(f"line-{i}", _name(one.name)) for i, one in enumerate(group)]) if len(group) > 1 else None
    return element("figure", caption, drawing, key)


def _thinned(one: GaugeSeries) -> GaugeSeries:
    places = extremes(one.values, MAX_POINTS)
    return GaugeSeries(
        host=one.host,
        name=one.name,
        unit=one.unit,
        seconds=[one.seconds[i] for i in places],
        values=[finite(one.values[i]) for i in places],
        limit=one.limit,
    )


def _frame(group: Sequence[GaugeSeries], limit: float | None) -> Frame:
    seconds = [second for one in group for second in one.seconds]
    values = [value for one in group for value in one.values if value is not None]
    top = max([*values, limit or 0.0]) or 1.0
    x = Axis(low=min(seconds), high=max(*seconds, min(seconds) + 1e-3), unit="s")
    return Frame(x=x, y=Axis(low=min(0.0, *values, 0.0), high=top * 1.04, unit=group[0].unit))


def _hover(group: Sequence[GaugeSeries]) -> str | None:
    """Return the values to show under the pointer: those of the series with the same times as the first series."""
    same = [one for one in group if list(one.seconds) == list(group[0].seconds)]
    series = [Series(name=_name(one.name), unit=one.unit, values=one.values) for one in same]
    return hover_data(group[0].seconds, series)


def _title(group: Sequence[GaugeSeries]) -> str:
    return _name(group[0].name if len(group) == 1 else group[0].name.partition("_")[0])


def _name(name: str) -> str:
    words = name.replace("_", " ").split(" ")
    return " ".join([WORDS.get(words[0], words[0].replace("gpu", "GPU ")), *words[1:]])


def _reading(group: Sequence[GaugeSeries], limit: float | None) -> str:
    known = [value for value in map(finite, group[0].values) if value is not None]
    if not known:
        return "not measured"
    mean, high = quantity(sum(known) / len(known), group[0].unit), quantity(max(known), group[0].unit)
    of = f" of {quantity(limit, group[0].unit)}" if limit is not None and group[0].unit != "%" else ""
    whose = f"{_name(group[0].name)}: " if len(group) > 1 else ""
    return f"{whose}mean {mean}, most {high}{of}"
