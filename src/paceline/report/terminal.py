"""What does a person read when the run is over? The verdict, why, what to do, what it would gain, where to look.

On a terminal: a bar of phases and labelled lines. Elsewhere (job logs, CI): one line per fact, each with a
prefix to search for. `NO_COLOR` and the like are rich's business; without colour the bar uses shades.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline import units
from paceline.explain.model import Cost, Diagnosis, Finding, Remedy
from paceline.report import words
from paceline.report.phases import shown
from paceline.report.terminal_bar import bar, legend

PREFIX = "paceline: "
MAX_EVIDENCE = 2
MAX_ALSO = 3
MAX_WIDTH = 100
LABEL_WIDTH = 8
_MARKS = {"critical": ("✗", "bold red"), "warning": ("▲", "bold yellow"), "good": ("✓", "bold green")}
_ASCII = str.maketrans(
    {"×": "x", "·": "-", "■": "#", "█": "#", "▓": "%", "▒": "=", "░": ".", "✗": "x", "▲": "!", "✓": "+"}
    | {"–": "-", "µ": "u", "\N{REPLACEMENT CHARACTER}": "?", "\N{NO-BREAK SPACE}": " ", "●": "*", "°": " "}
)

Encode = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One fact below the verdict."""

    label: str
    text: str
    style: str = ""
    copied: bool = False  # a path or a command: it is never wrapped, so that it can be copied


def render(diagnosis: Diagnosis, *, report_path: str, next_command: str, console: Console) -> None:
    """Print the few lines that end a run.

    Args:
        diagnosis: what was found.
        report_path: where the HTML report is; empty if none was written.
        next_command: what to type next; empty if there is nothing to say.
        console: where to print, as a rule stderr: stdout is the program's.
    """
    lines = _lines(diagnosis, report_path, next_command)
    printing = _print_rich if console.is_terminal else _print_plain
    printing(diagnosis, lines, console)


def _print_plain(diagnosis: Diagnosis, lines: Sequence[Line], console: Console) -> None:
    head = ", ".join(_head(diagnosis))
    title = f"verdict: {words.printable(diagnosis.verdict)}"
    details = ", ".join(_details(diagnosis))
    phases = ", ".join(f"{style.label} {units.percent(share)}" for style, share in shown(diagnosis.shares))
    texts = [head, f"{title} ({details})" if details else title, words.printable(diagnosis.verdict_text)]
    texts += [f"phases: {phases}"] if phases else []
    texts += [f"{line.label}: {line.text}" for line in lines]
    for text in texts:
        console.print(Text(PREFIX + _encodable(text, console)), soft_wrap=True)


def _print_rich(diagnosis: Diagnosis, lines: Sequence[Line], console: Console) -> None:
    encoded: Encode = partial(_encodable, console=console)
    console.print()
    console.print(Text.assemble(("paceline", "bold"), ("  " + encoded(" · ".join(_head(diagnosis))), "dim")))
    console.print(_title(diagnosis, encoded))
    console.print(_beside("", Text(encoded(words.printable(diagnosis.verdict_text))), width=0))
    console.print()
    _print_phases(diagnosis, console, encoded)
    for line in lines:
        _print_line(line, console, encoded)
    console.print()


def _print_phases(diagnosis: Diagnosis, console: Console, encoded: Encode) -> None:
    phases = shown(diagnosis.shares)
    if not phases:
        return
    coloured = console.color_system is not None and not console.no_color
    width = min(console.width, MAX_WIDTH) - 4
    console.print(_beside("", bar(phases, width, coloured, encoded), width=0))
    console.print(_beside("", legend(phases, coloured, encoded), width=0))
    console.print()


def _beside(label: str, text: Text, width: int = LABEL_WIDTH) -> Table:
    """Lay text out to the right of its label, so that lines after the first are indented alike."""
    grid = Table.grid()
    grid.add_column(width=width + 2, no_wrap=True)
    grid.add_column(max_width=MAX_WIDTH, overflow="fold")
    grid.add_row(Text("  " + label, style="dim"), text)
    return grid


def _title(diagnosis: Diagnosis, encoded: Encode) -> Text:
    mark, style = _MARKS.get(words.mood(diagnosis), ("●", "bold cyan"))
    title = Text.assemble((f"{encoded(mark)} {encoded(words.printable(diagnosis.verdict))}", style))
    for detail in _details(diagnosis):
        title.append("  " + encoded(detail), style="dim")
    return title


def _print_line(line: Line, console: Console, encoded: Encode) -> None:
    text = Text(encoded(line.text), style=line.style)
    if line.copied:
        label = ("  " + line.label.ljust(LABEL_WIDTH), "dim")
        console.print(Text.assemble(label, text), soft_wrap=True)
    else:
        console.print(_beside(line.label, text))


def _encodable(text: str, *, console: Console) -> str:
    return text.translate(_ASCII) if console.options.ascii_only else text


def _head(diagnosis: Diagnosis) -> list[str]:
    ended = words.ending(diagnosis)
    parts = [ended if diagnosis.wall_s is None else f"{ended} after {units.seconds(diagnosis.wall_s)}"]
    return [*parts, words.device(diagnosis)]


def _details(diagnosis: Diagnosis) -> list[str]:
    """Say beside the verdict: its code, the gain to expect, how sure that is."""
    finding = words.verdict_finding(diagnosis)
    if finding is None:
        return []
    parts = [words.printable(finding.code)]
    if finding.gain is not None and finding.gain.high > 1.0:
        parts.append(f"{words.gain(finding.gain)} faster steps if fixed")
    return [*parts, f"{finding.confidence} confidence"]


def _lines(diagnosis: Diagnosis, report_path: str, next_command: str) -> list[Line]:
    finding = words.verdict_finding(diagnosis)
    speed = ", ".join(words.speed(diagnosis))
    lines = [Line(label="steps", text=speed)] if speed else []
    lines += _finding_lines(finding) if finding else _reasons(diagnosis)
    lines += _also(diagnosis, finding)
    spread = words.rank_spread(diagnosis.ranks)
    if spread:
        lines.append(Line(label="ranks", text=spread))
    if diagnosis.cost is not None:
        lines.append(Line(label="cost", text=_cost(diagnosis.cost)))
    if report_path:
        lines.append(Line(label="report", text=words.printable(report_path), copied=True))
    if next_command:
        lines.append(Line(label="next", text=words.printable(next_command), style="bold", copied=True))
    return lines


def _finding_lines(finding: Finding) -> list[Line]:
    texts = [words.printable(one.text) for one in finding.evidence[:MAX_EVIDENCE]]
    lines = [Line(label="" if i else "why", text=text) for i, text in enumerate(texts)]
    if finding.remedies:
        lines.append(Line(label="do", text=_remedy(finding.remedies[0]), style="bold"))
    return lines


def _remedy(remedy: Remedy) -> str:
    gain = f", {words.gain(remedy.gain)}" if remedy.gain is not None else ""
    return f"{words.printable(remedy.change)} ({remedy.safety}{gain})"


def _reasons(diagnosis: Diagnosis) -> list[Line]:
    """Return why there is no verdict, where anything is known about it."""
    reasons = [*diagnosis.problems, *(f"{what}: {why}" for what, why in diagnosis.unavailable.items())]
    texts = [words.printable(reason) for reason in reasons[:MAX_EVIDENCE]]
    return [Line(label="" if i else "note", text=text) for i, text in enumerate(texts)]


def _also(diagnosis: Diagnosis, verdict: Finding | None) -> list[Line]:
    others = [finding for finding in diagnosis.findings if finding is not verdict]
    if not others:
        return []
    parts = [f"{words.printable(other.name)} ({words.printable(other.code)})" for other in others[:MAX_ALSO]]
    more = len(others) - MAX_ALSO
    text = ", ".join(parts) + (f" and {more} more" if more > 0 else "")
    return [Line(label="also", text=text)]


def _cost(cost: Cost) -> str:
    price = f"{units.money(cost.price_per_hour)}/h"
    source = f", {words.printable(cost.price_source)}" if cost.price_source else ""
    idle = f"{units.money(cost.idle)} of it ({units.percent(cost.idle_share)}) while the device waited"
    return f"{units.money(cost.run)}, {idle} ({price}{source})"
