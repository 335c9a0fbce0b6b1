"""Profiler captures as Markdown for a pull request: the verdict, a row for each rank, kernels, and changes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.diagnose import capture_verdict
from paceline.explain.model import Finding
from paceline.report import words
from paceline.report.markdown import code, escape, folded
from paceline.report.markdown import finding as finding_part
from paceline.report.trace.critical_path import path_lines
from paceline.report.trace.head import about, said
from paceline.report.trace.terminal import HEADS, KERNEL_HEADS, cells, kernel_rows, waiting
from paceline.report.trace.words import contrast_lines
from paceline.traces.analyze.across_ranks import most_unusual
from paceline.traces.analyze.comparison import compare_captures
from paceline.traces.analyze.ranks import Traces

_MARKS = {"critical": "🔴", "warning": "🟠", "info": "🔵"}
_MOST_RANKS = 16


def to_markdown(traces: Traces, findings: Sequence[Finding], before: Traces | None = None) -> str:
    """Return the analysis as GitHub-flavoured Markdown, with the changes since `before` if it is given."""
    changed = contrast_lines(compare_captures(before.ranks, traces.ranks)) if before is not None else []
    parts = [
        _title(traces, findings),
        escape(about(traces)),
        _table(HEADS, [cells(rank) for rank in most_unusual(traces.ranks, _MOST_RANKS)]),
        _more(len(traces.ranks) - _MOST_RANKS),
        _list(changed),
        *(finding_part(one) for one in findings),
        folded("Kernels", _table(KERNEL_HEADS, kernel_rows(traces.ranks))),
        folded("Collectives and the ranks that others wait for", _list(waiting(traces))),
        folded("Critical path", _list(path_lines(traces.ranks))),
        folded("Parts of the captures that could not be read, or that contradict each other", _list(traces.problems)),
        f"<sub>paceline trace of {words.count(len(traces.files), 'file')}</sub>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(traces: Traces, findings: Sequence[Finding]) -> str:
    verdict = capture_verdict(traces, findings)
    mark = _MARKS[findings[0].severity] if findings else "🟢" if verdict else "⚪"
    return f"### {mark} {code(verdict or 'no verdict')}\n\n{escape(words.headline(said(traces, findings)))}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = ["|".join(["", *map(escape, heads), ""]), "|".join(["", *("--:" for _ in heads[:-1]), ":--", ""])]
    return "\n".join([*lines, *("|".join(["", *(f" {escape(cell)} " for cell in row), ""]) for row in rows)])


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"{'  ' * line.startswith('  ')}- {escape(line.strip())}" for line in lines)


def _more(count: int) -> str:
    return escape(f"and {count:,} more are in the JSON result") if count > 0 else ""
