"""What became of each trial, on a terminal of any width? Its figures in columns, and below them what was changed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from paceline.report import tune_rows, words
from paceline.report.terminal import encodable
from paceline.report.tune_rows import Row
from paceline.tune.search.result import TuneResult

_STYLES = {"kept": "bold green", "unsafe": "bold red", "failed": "yellow", "undecided": "cyan"}
_WIDTHS = (11, 8, 27, 14)  # outcome, achieved, its ends, expected; the class is last
_MARGIN = _WIDTHS[0] + 2
_NARROWEST = 40


def print_trials(tuned: TuneResult, console: Console) -> None:
    """Print the trials that were made, and what was not tried by the reason."""
    made = tune_rows.rows(tuned)
    if made:
        console.print(Text(_columns("", "achieved", "", "expected", "class"), style="dim"), soft_wrap=True)
    for row in made:
        style = _STYLES.get(row.trial.status, "")
        console.print(Text(encodable(_figures(row), console=console), style=style), soft_wrap=True)
        _print_below(console, ", ".join(tune_rows.settings(row)))
        _print_below(console, tune_rows.reason(row.trial), "dim")
    lines = list(_left_out(tuned))
    if lines:
        console.print(Text("not tried", style="dim"))
    for line in lines:
        _print_below(console, line)


def _columns(*cells: str) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, (*_WIDTHS, 0), strict=True)).rstrip()


def _figures(row: Row) -> str:
    outcome = tune_rows.outcome(row.trial)
    expected = tune_rows.expected(row.expected)
    if not tune_rows.bounds(row.gain):
        both = tune_rows.value(row.gain).ljust(_WIDTHS[1] + 2 + _WIDTHS[2])
        return "  ".join((outcome.ljust(_WIDTHS[0]), both, expected.ljust(_WIDTHS[3]), row.trial.safety))
    return _columns(outcome, tune_rows.value(row.gain), tune_rows.bounds(row.gain), expected, row.trial.safety)


def _print_below(console: Console, text: str, style: str = "") -> None:
    """Print text under the figures, lines after the first as far to the right as that one."""
    width = max(_NARROWEST, console.width) - _MARGIN
    for line in textwrap.wrap(words.printable(text), width, break_on_hyphens=False):
        console.print(Text(encodable(" " * _MARGIN + line, console=console), style=style), soft_wrap=True)


def _left_out(tuned: TuneResult) -> Iterator[str]:
    skipped = tune_rows.left_out(tuned.trials)
    for reason in dict.fromkeys(trial.reason for trial in skipped):
        yield f"{reason}: {', '.join(trial.remedy for trial in skipped if trial.reason == reason)}"
