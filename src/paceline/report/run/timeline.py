"""The timeline of a run: step time and its phases over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from paceline.core import units
from paceline.explain.model import Diagnosis, TimelinePoint
from paceline.record.layout import PHASES
from paceline.report import words
from paceline.report.page.axis import Axis
from paceline.report.page.chart import Frame, Series, columns, hover_data, legend, plot, whiskers
from paceline.report.page.markup import Markup, details, element, section
from paceline.report.page.thin import merged
from paceline.report.phases import STYLES

MAX_COLUMNS = 500  # in the drawing of the first rank
MAX_SMALL_COLUMNS = 160  # in the drawing of each other rank
MAX_RANKS = 8
LEAST_SHARE = 0.001  # a phase whose share is below this in the whole drawing is left out


def timeline(diagnosis: Diagnosis) -> Markup | None:
    """Return the section with a large timeline of one rank and small timelines of some others; None without any."""
    drawn = {rank: points for rank, points in diagnosis.timelines.items() if points}
    if not drawn:
        return None
    rank = _most_telling(diagnosis, list(drawn))
    whose = f"Rank {rank}: the" if diagnosis.world > 1 else "The"
    points = merged(drawn[rank], MAX_COLUMNS)
    frame = _frame(points)
    key = [(PHASES[i], STYLES[PHASES[i]].label) for i in _used(points)]
    return section(
        "timeline",
        "Over the run",
        element(
            "p",
            f"{whose} mean step time, divided into phases. Thin lines show the slowest step{_beyond(points, frame)}. ",
            element("span", "Drag to zoom, double-click to go back.", class_="scripted"),
            class_="quiet",
        ),
        legend([*key, ("whisker", "slowest step")]),
        _large(points, frame),
        _others({other: points for other, points in drawn.items() if other != rank}),
    )


def _most_telling(diagnosis: Diagnosis, ranks: Sequence[int]) -> int:
    """Return the first rank that the verdict's finding names; the first of all if it names all ranks or none."""
    finding = words.verdict_finding(diagnosis)
    blamed = [rank for rank in finding.ranks if rank in ranks] if finding else []
    return blamed[0] if blamed and len(blamed) < len(ranks) else ranks[0]


def _large(points: Sequence[TimelinePoint], frame: Frame) -> Markup:
    label = (
        f"Step time over {words.count(_end(points) - points[0].step, 'step')}, stacked by phase; "
        f"the slowest step took {units.seconds(max(point.slowest_s for point in points))}."
    )
    marks = (*_stack(points, frame), _whiskers(points, frame))
    return plot(frame, *marks, label=label, hover=_hover(points))


def _others(timelines: dict[int, Sequence[TimelinePoint]]) -> Markup | None:
    if not timelines:
        return None
    chosen = sorted(timelines)[: MAX_RANKS - 1]
    panels = (_small(rank, merged(timelines[rank], MAX_SMALL_COLUMNS)) for rank in chosen)
    title = f"Timelines of {words.count(len(chosen), 'other rank')}"
    return details(title, element("div", *panels, class_="panels wide"))


def _small(rank: int, points: Sequence[TimelinePoint]) -> Markup:
    frame = _frame(points)
    label = f"Step time of rank {rank}, stacked by phase"
    drawing = plot(frame, *_stack(points, frame), label=label, size="tiny", ticks=(4, 2))
    return element("figure", element("figcaption", f"Rank {rank}"), drawing)


def _end(points: Sequence[TimelinePoint]) -> int:
    return points[-1].step + points[-1].steps


def _frame(points: Sequence[TimelinePoint]) -> Frame:
    x = Axis(low=points[0].step, high=max(_end(points), points[0].step + 1), unit="steps")
    return Frame(x=x, y=Axis(low=0.0, high=_ceiling(points), unit="s"))


def _ceiling(points: Sequence[TimelinePoint]) -> float:
    """Return the top of the time axis: the slowest step, but at most three times the usual step."""
    means = sorted(point.step_s for point in points)
    usual = means[int(0.98 * (len(means) - 1))]
    return min(max(point.slowest_s for point in points), 3.0 * usual) or 1.0


def _beyond(points: Sequence[TimelinePoint], frame: Frame) -> str:
    slowest = max(point.slowest_s for point in points)
    if slowest <= frame.y.high * 1.001:
        return ""
    number = sum(point.slowest_s > frame.y.high for point in points)
    places = "one of them goes" if number == 1 else f"{number} of them go"
    return f"; {places} beyond the scale, up to {units.seconds(slowest)}"


def _stack(points: Sequence[TimelinePoint], frame: Frame) -> list[Markup]:
    """Return the columns of the phases. Each is drawn from the bottom up to its upper edge, the topmost phase first."""
    edges = [*(float(point.step) for point in points), float(_end(points))]
    tops = [[point.step_s * upper for upper in accumulate(point.shares)] for point in points]
    return [columns(frame, edges, [top[i] for top in tops], PHASES[i]) for i in reversed(_used(points))]


def _used(points: Sequence[TimelinePoint]) -> list[int]:
    """Return the indices in `layout.PHASES` of the phases that are visible in the drawing."""
    return [i for i in range(len(PHASES)) if max(point.shares[i] for point in points) >= LEAST_SHARE]


def _whiskers(points: Sequence[TimelinePoint], frame: Frame) -> Markup:
    slow = [point for point in points if point.slowest_s > point.step_s * 1.3]
    middles = [point.step + point.steps / 2 for point in slow]
    return whiskers(frame, middles, [p.step_s for p in slow], [p.slowest_s for p in slow])


def _hover(points: Sequence[TimelinePoint]) -> str:
    series = [
        Series(name="mean step", unit="s", values=[point.step_s for point in points]),
        Series(name="slowest step", unit="s", values=[point.slowest_s for point in points]),
    ]
    for i in _used(points):
        values = [100 * point.shares[i] for point in points]
        series.append(Series(name=STYLES[PHASES[i]].label, unit="%", values=values))
    return hover_data([float(point.step) for point in points], series)
