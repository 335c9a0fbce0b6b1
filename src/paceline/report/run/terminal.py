"""The result of a run on the terminal: the verdict, its evidence, what to do, the expected gain, and the next command.

A terminal gets a bar of phases and labelled lines. Job logs and CI get one line per fact, each with a prefix to search
for. rich handles `NO_COLOR` and similar variables; without colour the bar uses shades.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from rich.console import Console
from rich.text import Text

from paceline.core import units
from paceline.explain.diagnose import WATCHING_STOPPED
from paceline.explain.model import Cost, Diagnosis, Finding, Remedy
from paceline.explain.next_step import NextStep
from paceline.report import words
from paceline.report.console import encodable
from paceline.report.phases import PhaseStyle, shown
from paceline.report.run.loss import of_target

PREFIX = "paceline: "
MAX_EVIDENCE = 2
MAX_ALSO = 3
MAX_NOTES = 2
MAX_WIDTH = 100
LABEL_WIDTH = 8
IF_FIXED = "faster if fixed"
_STYLES = {"critical": "bold red", "warning": "bold yellow", "good": "bold green", "info": "bold cyan"}
_FIRM = "\N{NO-BREAK SPACE}"
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[µmn]?s|min|h|[KMGTP]?i?B|USD|steps?|samples)\b)")

Encode = Callable[[str], str]
Shares = Sequence[tuple[PhaseStyle, float]]
_SHADES = "█░▓▒"
_REST = "·"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One fact below the verdict."""

    label: str
    text: str
    style: str = ""
    copied: bool = False  # a path or a command, which is never wrapped so that it can be copied
    comment: str = ""  # what the command does


def render(diagnosis: Diagnosis, *, report_path: str, following: NextStep | None, console: Console) -> None:
    """Print the result of a run in a few lines.

    Args:
        diagnosis: The diagnosis.
        report_path: The path of the HTML report; empty if none was written.
        following: What to do next; None if there is nothing.
        console: The console to print on, usually stderr, because stdout belongs to the program.
    """
    lines = _lines(diagnosis, report_path, following)
    printing = _print_rich if console.is_terminal else _print_plain
    printing(diagnosis, lines, console)


def _print_plain(diagnosis: Diagnosis, lines: Sequence[Line], console: Console) -> None:
    title = f"verdict: {words.printable(diagnosis.verdict)}"
    details = ", ".join(_details(diagnosis))
    phases = ", ".join(f"{style.label} {units.percent(share)}" for style, share in shown(diagnosis.shares))
    texts = [_head(diagnosis), f"{title} ({details})" if details else title]
    texts += [words.headline(diagnosis.verdict_text)]
    texts += [f"phases: {phases}"] if phases else []
    texts += [f"{line.label}: {line.text}" + (f"  # {line.comment}" if line.comment else "") for line in lines]
    prefix = PREFIX if console.stderr else ""  # the program also writes to stderr
    for text in texts:
        console.print(Text(prefix + encodable(text, console=console)), soft_wrap=True)


def _print_rich(diagnosis: Diagnosis, lines: Sequence[Line], console: Console) -> None:
    encoded: Encode = partial(encodable, console=console)
    width = min(console.width, MAX_WIDTH)
    blocks = [
        _head_line(diagnosis, width, encoded),
        _title(diagnosis, width, encoded),
        _indented("", words.headline(diagnosis.verdict_text), width, encoded),
        Text(),
        *_phase_lines(diagnosis, width, console, encoded),
        *(_line(line, before, width, encoded) for line, before in zip(lines, [None, *lines], strict=False)),
    ]
    for block in [Text(), *blocks, Text()]:
        console.print(block, soft_wrap=True)


def _phase_lines(diagnosis: Diagnosis, width: int, console: Console, encoded: Encode) -> list[Text]:
    phases = shown(diagnosis.shares)
    if not phases:
        return []
    coloured = console.color_system is not None and not console.no_color
    lines = [bar(phases, width - 4, coloured, encoded), *legend(phases, width - 4, coloured, encoded)]
    return [*(Text("  ").append_text(line) for line in lines), Text()]


def _line(line: Line, before: Line | None, width: int, encoded: Encode) -> Text:
    repeated = before is not None and before.label == line.label
    label = ("" if repeated else line.label).ljust(LABEL_WIDTH)
    if line.copied:
        return Text.assemble(("  " + label, "dim"), (encoded(line.text), line.style), _comment(line, width, encoded))
    return _indented(label, line.text, width, encoded, style=line.style)


def _comment(line: Line, width: int, encoded: Encode) -> tuple[str, str]:
    """Return the explanation of a command, and its style. A long text starts on a new line below the command."""
    if not line.comment:
        return "", ""
    margin = " " * (LABEL_WIDTH + 2)
    beside = encoded(f"  # {line.comment}")
    if len(margin) + len(line.text) + len(beside) <= width:
        return beside, "dim"
    rows = _wrapped(encoded(line.comment), max(20, width - len(margin) - 2))
    return "".join(f"\n{margin}# {row}" for row in rows), "dim"


def _indented(label: str, text: str, width: int, encoded: Encode, *, style: str = "") -> Text:
    """Return text to the right of its label, with all lines indented equally."""
    margin = " " * (len(label) + 2)
    rows = _wrapped(encoded(text), max(20, width - len(margin)))
    return Text.assemble(("  " + label, "dim"), (f"\n{margin}".join(rows), style))


def _wrapped(text: str, width: int) -> list[str]:
    """Return text broken into lines, but never between a number and its unit."""
    rows = textwrap.wrap(_BEFORE_UNIT.sub(_FIRM, text), width, break_on_hyphens=False)
    return [row.replace(_FIRM, " ") for row in rows]


def _title(diagnosis: Diagnosis, width: int, encoded: Encode) -> Text:
    """Return the verdict's name, with as many details beside it as fit."""
    name = f"{words.mark(diagnosis)} {words.printable(diagnosis.verdict)}"
    title = Text(encoded(name), style=_STYLES[words.mood(diagnosis)])
    for detail in _details(diagnosis):
        if title.cell_len + len(detail) + 2 <= width:
            shade = "green" if detail.endswith(IF_FIXED) else "dim"
            title = Text.assemble(title, ("  " + encoded(detail), shade))
    return title


def _head(diagnosis: Diagnosis) -> str:
    device = words.device(diagnosis)
    return words.ending_and_time(diagnosis) + (f" · {device}" if device else "")


def _head_line(diagnosis: Diagnosis, width: int, encoded: Encode) -> Text:
    rows = textwrap.wrap(encoded(_head(diagnosis)), width, initial_indent=" " * 10, subsequent_indent="  ")
    style = "red" if words.ended_badly(diagnosis) else "dim"
    return Text.assemble(("paceline", "bold"), ("\n".join(rows)[8:], style))


def _details(diagnosis: Diagnosis) -> list[str]:
    """Return the details of the verdict: its code, the expected gain, and the confidence."""
    finding = words.verdict_finding(diagnosis)
    return [] if finding is None else [*_code_and_gain(finding), f"{finding.confidence} confidence"]


def _code_and_gain(finding: Finding) -> list[str]:
    parts = [words.printable(finding.code)]
    if finding.gain is not None and finding.gain.high > 1.0:
        assumed = ", assumed" if finding.gain.basis == "assumed" else ""
        parts.append(f"{words.factors(finding.gain)} {IF_FIXED}{assumed}")
    return parts


def _lines(diagnosis: Diagnosis, report_path: str, following: NextStep | None) -> list[Line]:
    finding = words.verdict_finding(diagnosis)
    speed = ", ".join(words.speed(diagnosis))
    lines = [Line(label="steps", text=speed)] if speed else []
    lines += _finding_lines(finding, diagnosis) if finding else _reasons(diagnosis)
    own = words.own_finding(diagnosis)
    lines += _own_lines(own) if own is not None else []
    lines += _also([one for one in diagnosis.findings if one is not finding and one is not own])
    spread = words.rank_spread(diagnosis.ranks)
    if spread:
        lines.append(Line(label="ranks", text=spread))
    if finding is not None:
        told = [problem for problem in diagnosis.problems if not problem.startswith(WATCHING_STOPPED)]
        lines += [Line(label="note", text=words.printable(problem)) for problem in told[:MAX_NOTES]]
    if diagnosis.cost is not None:
        lines.append(Line(label="cost", text=_cost(diagnosis.cost)))
    if diagnosis.loss is not None and diagnosis.loss.target is not None:
        lines.append(Line(label="loss", text=of_target(diagnosis.loss)))
    if report_path:
        lines.append(Line(label="report", text=words.printable(report_path), copied=True))
    return [*lines, *_next(following)]


def _next(following: NextStep | None) -> list[Line]:
    if following is None:
        return []
    if following.command is None:
        return [Line(label="next", text=words.printable(following.text), style="bold")]
    command, text = words.printable(following.command), words.printable(following.text)
    return [Line(label="next", text=command, style="bold", copied=True, comment=text)]


def _finding_lines(finding: Finding, diagnosis: Diagnosis) -> list[Line]:
    texts = [words.printable(one.text) for one in words.evidence(finding, diagnosis)[:MAX_EVIDENCE]]
    lines = [Line(label="why", text=text) for text in texts]
    if finding.remedies:
        lines.append(Line(label="do", text=_remedy(finding.remedies[0]), style="bold"))
    return lines


def _own_lines(own: Finding) -> list[Line]:
    """Return the lines on the possible gain in the program itself, for a verdict that is about the machine."""
    name, summary = words.printable(own.name), words.printable(own.summary)
    lines = [Line(label="program", text=f"{name} ({', '.join(_code_and_gain(own))}): {summary}")]
    if own.remedies:
        lines.append(Line(label="do", text=_remedy(own.remedies[0]), style="bold"))
    return lines


def _remedy(remedy: Remedy) -> str:
    gain = f", {words.gain(remedy.gain)}" if remedy.gain is not None else ""
    return f"{words.printable(remedy.change)} ({remedy.safety}{gain})"


def _reasons(diagnosis: Diagnosis) -> list[Line]:
    """Return the lines on why there is no verdict; empty if no reason is known."""
    why = diagnosis.unavailable.get("steps")
    reasons = [*([why] if why and why not in diagnosis.verdict_text else []), *diagnosis.problems]
    texts = [words.printable(reason) for reason in reasons[:MAX_EVIDENCE]]
    return [Line(label="note", text=text) for text in texts]


def _also(others: Sequence[Finding]) -> list[Line]:
    if not others:
        return []
    parts = [f"{words.printable(other.name)} ({_code_and_factors(other)})" for other in others[:MAX_ALSO]]
    more = len(others) - MAX_ALSO
    text = ", ".join(parts) + (f" and {more} more" if more > 0 else "")
    return [Line(label="also", text=text)]


def _code_and_factors(finding: Finding) -> str:
    gain = finding.gain
    factors = f", {words.gain(gain)}" if gain is not None and gain.high > 1.0 else ""
    return words.printable(finding.code) + factors


def _cost(cost: Cost) -> str:
    price = f"{units.money(cost.run)} at {units.money(cost.price_per_hour)}/h"
    return f"{price}, {units.percent(cost.idle_share)} of the cost for time in which nothing was computed"


def cells(shares: Sequence[float], width: int) -> list[int]:
    """Return how many character cells each share gets, by largest remainder; the sum is `width`."""
    whole = sum(shares)
    exact = [share / whole * width for share in shares]
    given = [int(cell) for cell in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: given[i] - exact[i])
    for i in by_rest[: width - sum(given)]:
        given[i] += 1
    return given


def bar(phases: Shares, width: int, coloured: bool, encoded: Callable[[str], str]) -> Text:
    """Return the phases as one line of blocks; the remaining share is shown as dots."""
    rest = max(0.0, 1.0 - sum(share for _, share in phases))
    *counts, dots = cells([*(share for _, share in phases), rest], width)
    text = Text(no_wrap=True)
    for (style, _), glyph, number in zip(phases, _bar_glyphs(phases, coloured), counts, strict=True):
        text.append(encoded(glyph) * number, style=style.dark if coloured else "")
    return text.append(encoded(_REST) * dots, style="dim")


def legend(phases: Shares, width: int, coloured: bool, encoded: Callable[[str], str]) -> list[Text]:
    """Return the names of the phases in the order of the bar; lines break only between phases."""
    lines: list[Text] = []
    for (style, share), glyph in zip(phases, _bar_glyphs(phases, coloured), strict=True):
        swatch = (encoded("■" if coloured else glyph), style.dark if coloured else "")
        entry = Text.assemble(swatch, f" {style.label} {units.percent(share)}")
        if lines and lines[-1].cell_len + 3 + entry.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "   ", entry)
        else:
            lines.append(entry)
    return lines


def _bar_glyphs(phases: Shares, coloured: bool) -> list[str]:
    """Return a character for each phase of the bar; without colour, neighbours have different characters."""
    shades = cycle("█" if coloured else _SHADES)
    return [next(shades) for _ in phases]
