"""What does a person read when tuning is over? What each change brought, what was kept, and what to type next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline import units
from paceline.explain.model import Diagnosis, Gain, Interval
from paceline.improve.model import Trial, Tuned
from paceline.improve.recipe import in_words
from paceline.report.phases import shown

PREFIX = "paceline: "
_STYLES = {"kept": "bold green", "unsafe": "bold red", "failed": "yellow"}


def render(tuned: Tuned, *, recipe_file: str | None, next_command: str, console: Console) -> None:
    """Print the result of tuning: a table on a terminal, a line a trial elsewhere."""
    if console.is_terminal:
        console.print(_table(tuned.trials))
    else:
        _say(console, *(f"trial: {line}" for line in map(_line, tuned.trials)))
    _say(console, *_end(tuned), *([f"recipe: {recipe_file}"] if recipe_file else []), f"next: {next_command}")


def _say(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(Text(PREFIX + line), soft_wrap=True)


def _table(trials: Sequence[Trial]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head, side in (("change", "left"), ("class", "left"), ("expected", "right"), ("achieved", "right")):
        table.add_column(head, justify="right" if side == "right" else "left", overflow="fold")
    table.add_column("outcome", overflow="fold")
    for trial in trials:
        outcome = Text(f"{trial.status}: {trial.reason}", style=_STYLES.get(trial.status, ""))
        table.add_row(_what(trial), trial.safety, _gain(trial.predicted), _speedup(trial.speedup), outcome)
    return table


def _line(trial: Trial) -> str:
    achieved = f"{_speedup(trial.speedup)}, expected {_gain(trial.predicted)}, " if trial.speedup else ""
    return f"{_what(trial)} ({trial.safety}): {achieved}{trial.status}: {trial.reason}"


def _what(trial: Trial) -> str:
    return trial.remedy if trial.status == "skipped" else in_words(trial.recipe)


def _gain(gain: Gain | None) -> str:
    return "not known" if gain is None else f"{units.factor(gain.low)} to {units.factor(gain.high)}"


def _speedup(interval: Interval | None) -> str:
    if interval is None:
        return "not measured"
    ends = f"{units.factor(interval.low)} to {units.factor(interval.high)}"
    return f"{units.factor(interval.value)} ({ends}, {interval.count} pairs)"


def _end(tuned: Tuned) -> list[str]:
    lines = [f"tuned for {units.seconds(tuned.wall_s)}; {tuned.stopped}"]
    if not tuned.best:
        return [*lines, "no proven win: the program stays as it is"]
    lines.append(f"best: {in_words(tuned.best)}, {_speedup(tuned.speedup)} over the program as it is")
    lines += [f"{'proof' if check.passed else 'changed'}: {check.text}" for check in tuned.checks]
    lines.append(f"before: {_phases(tuned.before)}")
    if tuned.after is not None:
        lines.append(f"after: {_phases(tuned.after)}")
    return lines


def _phases(diagnosis: Diagnosis) -> str:
    parts = ", ".join(f"{style.label} {units.percent(share)}" for style, share in shown(diagnosis.shares))
    return f"{diagnosis.verdict}; {parts}"
