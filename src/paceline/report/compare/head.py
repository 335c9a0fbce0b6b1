"""The head of a comparison page: the outcome, what to do first, a bar for each run, the main numbers."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core import units
from paceline.explain.comparison import Comparison, Outcome
from paceline.explain.model import Diagnosis
from paceline.report import words
from paceline.report.compare.rows import RUN_TIME, ComparisonRow, next_text, reasons, relative, rows
from paceline.report.compare.terminal import MARKS
from paceline.report.page.markup import Markup, element, join, sentence
from paceline.report.page.next_step import first_step
from paceline.report.page.paced import Paced, paced
from paceline.report.page.verdict import Fact, facts

_MOODS: Mapping[Outcome, str] = {
    "regression": "critical",
    "slower": "warning",
    "cannot-tell": "info",
    "same": "good",
    "faster": "good",
}
_NEXT: Mapping[Outcome, str] = {
    "regression": "Find out what causes the slow-down",
    "slower": "The slow-down is within the tolerance; find out what could make the run faster",
    "cannot-tell": "Compare longer runs, and find out what slows the run down now",
    "same": "Nothing changed; find out what slows the run down",
    "faster": "Keep the change, and find out what slows the run down now",
}
_TWICE = 2.0  # from this ratio on, the text shows a factor instead of a percentage
_IN_TILES = (RUN_TIME, "steady throughput", "device memory", "host memory")


def first_sentence(comparison: Comparison) -> str:
    """Return the sentence that says what to do first."""
    launch = comparison.launch_after
    if comparison.outcome == "faster" and launch is not None and launch.recipe is not None:
        return "Keep the change: write the recipe into the source"
    return _NEXT[comparison.outcome]


def header(comparison: Comparison, next_command: str) -> Markup:
    """Return the head of the page."""
    mood = _MOODS[comparison.outcome]
    chip = element("span", MARKS[comparison.outcome][0], aria_hidden="true")
    return element(
        "header",
        element("p", element("b", "paceline compare"), element("span", "two runs"), class_="brand"),
        element("p", chip, element("strong", comparison.outcome), class_=f"chip {mood}"),
        element("h1", sentence(headline(comparison))),
        element("p", _why(comparison), class_="meta"),
        first_step(
            first_sentence(comparison),
            details=[],
            command=next_command,
            before=_what_it_does(comparison),
        ),
        _bars(comparison),
        facts(_facts(comparison)),
        _runs(comparison),
    )


def _what_it_does(comparison: Comparison) -> str:
    """Return the sentence that says what the next command does; empty if `first_sentence` already says it."""
    text = next_text(comparison)
    return "" if text in first_sentence(comparison) else f"{words.headline(text)}:"


def headline(comparison: Comparison) -> str:
    """Return the change of the step time as one sentence."""
    ratio = comparison.ratio
    if ratio is None or comparison.outcome in ("cannot-tell", "same"):
        return words.headline(comparison.text.partition(" (95%")[0])
    share = units.percent(abs(ratio.value - 1))
    if comparison.outcome == "faster":
        return f"{units.factor(1 / ratio.value)} faster: a {comparison.basis} takes {share} less time"
    longer = f"{units.factor(ratio.value)} the time" if ratio.value >= _TWICE else f"{share} more time"
    judged = "a regression" if comparison.outcome == "regression" else "within the tolerance"
    return f"A {comparison.basis} takes {longer}: {judged}"


def _why(comparison: Comparison) -> Markup:
    ratio = comparison.ratio
    parts: list[str | Markup] = []
    if ratio is not None:
        ends = f"{relative(ratio.low)} to {relative(ratio.high)}"
        tolerance = units.percent(comparison.tolerance)
        parts.append(f"Change of the step time: {relative(ratio.value)} (95% CI {ends}; tolerance {tolerance}).")
    told = [f" {words.headline(text)}." for label, text in reasons(comparison) if label == "why"]
    return join([*parts, *told])


def _bars(comparison: Comparison) -> Markup | None:
    before, after = comparison.time_before_s, comparison.time_after_s
    if before is None or after is None:
        return None
    runs = [
        Paced(name="Before", time_s=before.value, shares=_shares(comparison, after=False)),
        Paced(name="After", time_s=after.value, shares=_shares(comparison, after=True)),
    ]
    return paced(runs, comparison.basis)


def _shares(comparison: Comparison, *, after: bool) -> dict[str, float]:
    times = {one.phase: one.after_s if after else one.before_s for one in comparison.phases}
    whole = sum(times.values()) or 1.0
    return {phase: time / whole for phase, time in times.items()}


def _facts(comparison: Comparison) -> list[Fact]:
    made = rows(comparison)
    chosen = [*made[:1], *(row for row in made if row.label in _IN_TILES or row.label.startswith("loss"))]
    return [_fact(row) for row in chosen] if comparison.ratio is not None else [_fact(row) for row in made]


def _fact(row: ComparisonRow) -> Fact:
    return words.headline(row.label), _arrow(row.before, row.after), row.change


def _arrow(before: str, after: str) -> str:
    """Return a change with the unit only once: ``110 → 841 ms``."""
    number, _, unit = before.rpartition(" ")
    return f"{number} → {after}" if number and after.endswith(f" {unit}") else f"{before} → {after}"


def _runs(comparison: Comparison) -> Markup:
    lines = (("Before", comparison.before), ("After", comparison.after))
    return element("dl", *(_run(name, run) for name, run in lines), class_="runs")


def _run(name: str, run: Diagnosis) -> Markup:
    about = join((element("b", run.run_id), element("code", run.command)))
    return element("div", element("dt", name), element("dd", about))
