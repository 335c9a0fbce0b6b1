"""The analysis of captures on the terminal: a row for each rank, the largest kernels, and stragglers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from paceline.core import units
from paceline.explain.diagnose import capture_verdict
from paceline.explain.model import Finding
from paceline.report.console import encodable
from paceline.report.trace.critical_path import path_lines
from paceline.report.trace.words import contrast_lines, idle_text, launcher_lines, product_lines
from paceline.report.words import count, number_list, printable
from paceline.report.words import gain as gain_in_words
from paceline.traces import WINDOWS
from paceline.traces.analyze.across_ranks import kernels_over, most_unusual, share_of
from paceline.traces.analyze.comparison import compare_captures
from paceline.traces.analyze.ranks import RankTrace, Traces
from paceline.traces.capture import CLASSES

PREFIX = "paceline: "
MAX_RANKS, MAX_KERNELS, MAX_PROBLEMS = 16, 10, 8
HEADS = (
    "rank",
    "device",
    "GPU events",
    "span",
    "idle",
    "compute",
    "not overlapped comm.",
    "not overlapped copies",
    "overlap",
)
KERNEL_HEADS = ("class", "count", "total", "mean", "of GPU time", "kernel")
_NAME_WIDTH = 72
_LEAST_WIDTH = 40
_MAX_EVIDENCE = 3


def render_traces(traces: Traces, findings: Sequence[Finding], console: Console, against: Traces | None = None) -> None:
    """Print the analysis: tables on a terminal, otherwise one line per fact."""
    told = _verdict(traces, findings)
    changed = contrast_lines(compare_captures(against.ranks, traces.ranks)) if against is not None else []
    lines = _rich(traces, told, changed, console.width) if console.is_terminal else _plain(traces, told, changed)
    encoded = partial(encodable, console=console)
    prefix = PREFIX if console.stderr else ""  # the program also writes to stderr
    for line in lines:
        text = line if isinstance(line, Text) else Text(prefix + line)
        console.print(Text(encoded(printable(text.plain)), style=text.style), soft_wrap=True)


# -- plain ---------------------------------------------------------------------------------------------


def _plain(traces: Traces, told: Sequence[str], changed: Sequence[str]) -> list[str | Text]:
    shown = _shown(traces)
    found = [f"window: {_window(traces)}", *told]
    found += [", ".join(f"{head} {cell}" for head, cell in zip(HEADS, cells(rank), strict=True)) for rank in shown]
    found += [f"idle of {rank.title}: {text}" for rank in shown if (text := idle_text(rank.idle))]
    found += _left_out(traces, shown)
    for row in kernel_rows(traces.ranks):
        found.append("kernel: " + ", ".join(f"{h} {c}" for h, c in zip(KERNEL_HEADS, row, strict=True)))
    found += [f"waiting: {text}" for text in waiting(traces)]
    found += [f"launches of {rank.title}: {text}" for rank in shown if (text := _launches(rank))]
    found += [*path_lines(traces.ranks), *launcher_lines(traces.ranks), *product_lines(traces.ranks)]
    return [*found, *changed, *(f"problem: {text}" for text in _problems(traces))]


# -- on a terminal -------------------------------------------------------------------------------------


def _rich(traces: Traces, told: Sequence[str], changed: Sequence[str], width: int) -> list[str | Text]:
    shown = _shown(traces)
    ranks = _table(HEADS, [cells(rank) for rank in shown])
    ranks += [Text(f"  {text}", style="dim") for text in _left_out(traces, shown)]
    idle = [f"idle of {rank.title}: {text}" for rank in shown if (text := idle_text(rank.idle))]
    late = [f"launches of {rank.title}: {text}" for rank in shown if (text := _launches(rank))]
    blocks = [
        [Text(f"paceline  {_window(traces)}", style="bold")],
        _wrapped(told, width, first="bold"),
        ranks,
        _wrapped(idle + late, width),
        _table(KERNEL_HEADS, kernel_rows(traces.ranks)),
        _wrapped(waiting(traces), width),
        _wrapped(path_lines(traces.ranks), width),
        _wrapped([*launcher_lines(traces.ranks), *product_lines(traces.ranks)], width),
        _wrapped(changed, width),
        _wrapped([f"! {text}" for text in _problems(traces)], width, style="yellow"),
    ]
    return [line for block in blocks if block for line in (Text(), *block)]


def _wrapped(texts: Sequence[str], width: int, *, style: str = "", first: str | None = None) -> list[Text]:
    """Return texts as lines of at most `width` characters; continuation lines are indented further."""
    lines = []
    for place, text in enumerate(texts):
        indent = " " * (2 + len(text) - len(text.lstrip()))
        folded = textwrap.wrap(
            text.lstrip(), max(width, _LEAST_WIDTH), initial_indent=indent, subsequent_indent=indent + "    "
        )
        own = first if first is not None and place == 0 else style
        lines += [Text(line, style=own) for line in folded]
    return lines


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Text]:
    if not rows:
        return []
    widths = [max(len(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    last = len(heads) - 1
    found = []
    for row in [heads, *rows]:
        cells = [c if i == last else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        found.append(Text("  " + "  ".join(cells), style="dim" if row is heads else ""))
    return found


# -- texts ---------------------------------------------------------------------------------------------


def _shown(traces: Traces) -> list[RankTrace]:
    """Return the ranks that get a row; none if no rank has GPU events, which the verdict then says."""
    return most_unusual(traces.ranks, MAX_RANKS) if any(rank.breakdown.events for rank in traces.ranks) else []


def _window(traces: Traces) -> str:
    window = traces.ranks[0].window
    return f"{count(len(traces.ranks), 'capture')}, window {window}: {WINDOWS[window]}"


def cells(rank: RankTrace) -> tuple[str, ...]:
    """Return the cells of a rank's row, one for each of `HEADS`."""
    parts = rank.breakdown
    span = parts.span_ns

    def share(ns: int) -> str:
        return units.percent(ns / span) if span else "n/a"

    return (
        f"n/a ({Path(rank.source).name})" if rank.rank is None else str(rank.rank),
        _device(rank),
        f"{parts.events:,}",
        units.seconds(span / 1e9) if span else "n/a",
        share(parts.idle_ns),
        share(parts.compute_ns),
        share(parts.exposed_communication_ns),
        share(parts.exposed_copy_ns),
        units.percent(parts.overlap_ns / parts.communication_ns) if parts.communication_ns else "n/a",
    )


def _device(rank: RankTrace) -> str:
    number = f"GPU {rank.device}" if rank.device is not None else "n/a"
    if rank.gpu is None:
        return number
    return f"{number}: {rank.gpu}" if rank.one_of_several else rank.gpu


def _launches(rank: RankTrace) -> str:
    """Return a text on the launch queue of a rank; empty if the capture has no launches."""
    queue, span = rank.queue, rank.breakdown.span_ns
    if queue.delay_median_ns is None or queue.delay_high_ns is None:
        return ""
    delays = f"{units.seconds(queue.delay_median_ns / 1e9)}, 95th percentile {units.seconds(queue.delay_high_ns / 1e9)}"
    length = f"queue length {queue.waiting_median} (median), up to {queue.waiting_most:,}"
    said = f"{queue.launched:,}, median delay to the work {delays}; {length}"
    said += f"; the GPU is idle and waits for {queue.late:,} of these launches"
    if not queue.stretches or not span:
        return said
    bound = f"{units.percent(queue.bound_ns / span)} of the captured time in {count(queue.stretches, 'stretch')}"
    return f"{said}; launch-bound for {bound}"


def kernel_rows(ranks: Sequence[RankTrace]) -> list[tuple[str, ...]]:
    """Return the rows of the kernels that take most time over all ranks."""
    found = kernels_over(ranks)
    return [
        (
            CLASSES[one.class_],
            f"{one.count:,}",
            units.seconds(one.total_ns / 1e9),
            units.seconds(one.mean_ns / 1e9),
            units.percent(share_of(one.total_ns, found)),
            one.name if len(one.name) <= _NAME_WIDTH else one.name[: _NAME_WIDTH - 1] + "…",
        )
        for one in found[:MAX_KERNELS]
    ]


def _verdict(traces: Traces, findings: Sequence[Finding]) -> list[str]:
    """Return the lines on the findings, the verdict first, with evidence."""
    verdict = capture_verdict(traces, findings)
    if verdict is None:
        return ["verdict: n/a, the captures contain no GPU events in the window"]
    if not findings:
        return [f"verdict: {verdict}; no problem takes so much time that a change is worthwhile"]
    found = []
    for place, one in enumerate(findings):
        gain = f"; {gain_in_words(one.gain)} faster if fixed" if one.gain is not None else ""
        found.append(f"{'also' if place else 'verdict'}: {one.name} ({one.code}): {one.summary}{gain}")
        found += [f"  {evidence.text}" for evidence in one.evidence[:_MAX_EVIDENCE]]
        found += [f"  try {remedy.id} ({remedy.safety}): {remedy.change}" for remedy in one.remedies[:_MAX_EVIDENCE]]
    return found


def waiting(traces: Traces) -> list[str]:
    """Return the lines on waiting in collectives and on stragglers; empty without collectives."""
    collectives = traces.matched.collectives
    if not collectives:
        return []
    waited = units.seconds(sum(one.waited_ns for one in collectives) / 1e9)
    longest, waited_ns = max(traces.matched.waited_ns.items(), key=lambda item: (item[1], -item[0]))
    found = [f"ranks wait {waited} for each other in {len(collectives)} collective operations (sum over ranks)"]
    found.append(f"rank {longest} waits longest, {units.seconds(waited_ns / 1e9)} in total")
    for one in traces.stragglers:
        caused = f"{units.seconds(one.caused_ns / 1e9)} ({units.percent(one.share)})"
        found.append(
            f"rank {one.rank} is last in {one.last_in} of {one.of} collective operations and causes "
            f"{caused} of waiting time"
        )
    moved = traces.matched.offsets_ns
    if moved:
        most = max(abs(ns) for ns in moved.values())
        found.append(
            f"the clocks of ranks {number_list(sorted(moved))} were shifted by up to {units.seconds(most / 1e9)}, "
            "so that each collective ends at the same time on all ranks"
        )
    return found


def _left_out(traces: Traces, shown: Sequence[RankTrace]) -> list[str]:
    left = len(traces.ranks) - len(shown)
    return [f"{left:,} more ranks, which are closer to the median, are in the JSON result"] if left and shown else []


def _more(count: int) -> list[str]:
    return [f"{count} more are in the JSON result"] if count > 0 else []


def _problems(traces: Traces) -> list[str]:
    shown = list(traces.problems[:MAX_PROBLEMS])
    return shown + _more(len(traces.problems) - len(shown))
