"""The result of tuning on the terminal: the measured gain of each change, the kept changes, and the next command."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from paceline.core import units
from paceline.core.recipe import describe_recipe
from paceline.explain.model import Diagnosis, Gain
from paceline.explain.next_step import NextStep
from paceline.report import words
from paceline.report.console import encodable
from paceline.report.phases import shown
from paceline.report.tune import rows as tune_rows
from paceline.report.tune.rows import TrialRow
from paceline.report.tune.words import (
    batch_lines,
    failure_line,
    gained,
    money_lines,
    not_watched,
    quality_lines,
    safety_line,
    unproven_lines,
    whole_line,
)
from paceline.report.words import printable
from paceline.tune.search.next_step import busy_text
from paceline.tune.search.result import OUTCOMES, Trial, TuneResult, untried_remedies

PREFIX = "paceline: "
_STYLES = {"kept": "bold green", "unsafe": "bold red", "failed": "yellow", "undecided": "cyan"}
_WIDTHS = (11, 8, 27, 14)  # outcome, measured gain, its interval, expected gain; the safety class is last
_MARGIN = _WIDTHS[0] + 2
_NARROWEST = 40


def render(tuned: TuneResult, *, recipe_file: str | None, steps: Sequence[NextStep], console: Console) -> None:
    """Print the result of tuning: a table on a terminal, otherwise one line per trial."""
    if console.is_terminal:
        print_trials(tuned, console)
    else:
        _say(console, *(f"trial: {_line(trial, tuned)}" for trial in tuned.trials))
    _say(console, *_end(tuned), *_written(tuned, recipe_file), *_next(steps))


def _written(tuned: TuneResult, recipe_file: str | None) -> list[str]:
    what = "recipe" if tuned.best else "recipe that is not proven"
    return [f"{what}: {recipe_file}"] if recipe_file else []


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(PREFIX + encodable(printable(line), console=console)), soft_wrap=True)


def _next(steps: Sequence[NextStep]) -> list[str]:
    """Return a line for each step: the first is what to do next, the others are alternatives."""
    return [f"{'or' if place else 'next'}: {step.line}" for place, step in enumerate(steps)]


def _line(trial: Trial, tuned: TuneResult) -> str:
    achieved = f"{tune_rows.achieved(trial.speedup)}, expected {_expected(trial)}, " if trial.speedup else ""
    if tune_rows.for_memory(tuned) and trial.speedup:
        memory = tune_rows.achieved(trial.saving)
        achieved = f"peak memory smaller by a factor of {memory}, speed {tune_rows.achieved(trial.speedup)},  "
    return f"{_what(trial)} ({trial.safety}): {achieved}{OUTCOMES[trial.status]}: {trial.reason}"


def _what(trial: Trial) -> str:
    return trial.remedy if trial.status == "skipped" else describe_recipe(trial.recipe)


def _expected(trial: Trial) -> str:
    """Return the expected speed-up as text; if earlier trials corrected it, also the estimate of the finding."""
    corrected = trial.predicted_by_findings is not None and trial.predicted_by_findings != trial.predicted
    own = f" (findings: {_gain(trial.predicted_by_findings)}; corrected with earlier trials)" if corrected else ""
    return _gain(trial.predicted) + own


def _gain(gain: Gain | None) -> str:
    return "unknown" if gain is None else f"{units.factor(gain.low)} to {units.factor(gain.high)}"


def _end(tuned: TuneResult) -> list[str]:
    lines = [f"tuned for {units.seconds(tuned.wall_s)}; {tuned.stopped}"]
    lines += [failed] if (failed := failure_line(tuned)) is not None else []
    lines += [f"busy: {busy}"] if (busy := busy_text(tuned)) is not None else []
    lines += [f"batch: {line}" for line in (batch_lines(tuned.batch) if tuned.batch is not None else ())]
    hand = [
        f"by hand: {one.remedy.id} ({one.finding}): {one.remedy.change}; {one.why}" for one in untried_remedies(tuned)
    ]
    if not tuned.best:
        return [*lines, "no gain was proven: the baseline is kept", *unproven_lines(tuned), *hand]
    lines.append(f"best: {describe_recipe(tuned.best)}, {gained(tuned)}")
    lines += [whole] if (whole := whole_line(tuned)) is not None else []
    lines += [safety_line(tuned), *money_lines(tuned)]
    lines += [f"{'proof' if check.passed else 'changed'}: {check.text}" for check in tuned.checks]
    lines += quality_lines(tuned.quality, tuned.price_per_hour) if tuned.quality is not None else ()
    lines.append(f"before: {_phases(tuned.before)}")
    return [*lines, f"after: {_phases(tuned.after) if tuned.after is not None else not_watched(tuned)}", *hand]


def _phases(diagnosis: Diagnosis) -> str:
    parts = ", ".join(f"{style.label} {units.percent(share)}" for style, share in shown(diagnosis.shares))
    return f"{diagnosis.verdict}; {parts}"


def print_trials(tuned: TuneResult, console: Console) -> None:
    """Print the trials that were run, and the skipped ones by reason."""
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


def _figures(row: TrialRow) -> str:
    outcome = tune_rows.outcome(row.trial)
    expected = tune_rows.expected(row.expected)
    if not tune_rows.bounds(row.gain):
        both = tune_rows.value(row.gain).ljust(_WIDTHS[1] + 2 + _WIDTHS[2])
        return "  ".join((outcome.ljust(_WIDTHS[0]), both, expected.ljust(_WIDTHS[3]), row.trial.safety))
    return _columns(outcome, tune_rows.value(row.gain), tune_rows.bounds(row.gain), expected, row.trial.safety)


def _print_below(console: Console, text: str, style: str = "") -> None:
    """Print text below a row of figures, with all lines indented equally."""
    width = max(_NARROWEST, console.width) - _MARGIN
    for line in textwrap.wrap(words.printable(text), width, break_on_hyphens=False):
        console.print(Text(encodable(" " * _MARGIN + line, console=console), style=style), soft_wrap=True)


def _left_out(tuned: TuneResult) -> Iterator[str]:
    skipped = tune_rows.left_out(tuned.trials)
    for reason in dict.fromkeys(trial.reason for trial in skipped):
        yield f"{reason}: {', '.join(trial.remedy for trial in skipped if trial.reason == reason)}"
