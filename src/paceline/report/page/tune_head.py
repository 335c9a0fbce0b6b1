"""The head of the page on tuning: what was won, in one sentence, two bars and a handful of numbers."""

from __future__ import annotations

import shlex

from paceline import units
from paceline.explain.model import Diagnosis, Safety
from paceline.improve.model import Tuned
from paceline.report import tune_rows, words
from paceline.report.page.chart import phase_bar, swatch
from paceline.report.page.findings import SAFETY
from paceline.report.page.markup import Markup, element, join, sentence
from paceline.report.page.verdict import Fact, facts
from paceline.report.phases import STYLES, shown
from paceline.report.tune_words import money_lines

_READABLE = 0.45  # of the width: in a shorter bar there is no room for numbers
_ORDER: tuple[Safety, ...] = ("exact", "numeric", "semantic")
_TRAINING = {
    "exact": "The same training",
    "numeric": "The same training in other rounding",
    "semantic": "Training with other mathematics",
}


def header(tuned: Tuned, next_command: str) -> Markup:
    """Make the top of the page."""
    return element(
        "header",
        element("p", element("b", "paceline tune"), element("span", words.device(tuned.before)), class_="brand"),
        _chip(tuned),
        element("h1", sentence(headline(tuned))),
        element("p", _meta(tuned), class_="meta"),
        element("pre", element("code", shlex.join(tuned.command)), class_="command", tabindex="0"),
        _bars(tuned),
        facts(_facts(tuned)),
        *(element("p", sentence(words.headline(line)), class_="meta") for line in money_lines(tuned)),
        element("p", element("span", "Next"), element("code", next_command), class_="next"),
    )


def headline(tuned: Tuned) -> str:
    """Say in one sentence what came of it."""
    if not tuned.best:
        return "No proven win: the program stays as it is"
    gained = tune_rows.in_all(tuned)
    changes = words.count(len(_kept(tuned)), "change")
    if gained is None:
        return f"{changes} kept, each a proven win; together they were not measured"
    factor = units.factor(gained.value)
    much = f"in {factor} less memory" if tune_rows.for_memory(tuned) else f"{factor} faster"
    return f"{_TRAINING[_class(tuned)]}, {much}"


def _kept(tuned: Tuned) -> list[Safety]:
    """Return the safety classes of the changes that were kept."""
    return [trial.safety for trial in tuned.trials if trial.status == "kept"]


def _class(tuned: Tuned) -> Safety:
    return max(_kept(tuned), key=_ORDER.index, default="exact")


def _chip(tuned: Tuned) -> Markup:
    mark, name, mood = ("✓", "proven win", "good") if tuned.best else ("●", "no proven win", "info")
    return element("p", element("span", mark, aria_hidden="true"), element("strong", name), class_=f"chip {mood}")


def _meta(tuned: Tuned) -> Markup:
    parts: list[str | Markup] = []
    if tuned.best:
        badge = element("span", _class(tuned), class_=f"badge {_class(tuned)}")
        parts = [badge, f" {SAFETY[_class(tuned)]} · "]
    return join([*parts, f"tuned for {units.seconds(tuned.wall_s)}; {tuned.stopped}"])


# -- before and after ------------------------------------------------------------------------------------


def _bars(tuned: Tuned) -> Markup | None:
    """Draw a step before and after, as long as it takes."""
    runs = [("As it is", tuned.before), *([("With the recipe", tuned.after)] if tuned.after is not None else [])]
    if not shown(tuned.before.shares):
        return None
    longest = max(_step_s(run) for _, run in runs)
    bars = [part for name, run in runs for part in _bar(name, run, _step_s(run) / longest)]
    return element("div", element("div", *bars, class_="paced"), _key([run for _, run in runs]), class_="hero")


def _step_s(run: Diagnosis) -> float:
    known = words.finite(run.step_s.value) if run.step_s is not None else None
    return known if known else 1.0


def _bar(name: str, run: Diagnosis, length: float) -> tuple[Markup, ...]:
    drawn = phase_bar(run.shares, named=length >= _READABLE)
    step = units.seconds(run.step_s.value) if run.step_s is not None else units.MISSING
    return (
        element("span", name),
        element("div", element("div", drawn, style=f"width:{max(0.5, 100 * length):.2f}%"), class_="track"),
        element("span", element("b", step), " a step"),
    )


def _key(runs: list[Diagnosis]) -> Markup:
    """Name the phases' colours with their shares before and after."""
    names = [name for name in STYLES if any(run.shares.get(name, 0.0) > 0.02 for run in runs)]
    entries = (
        (name, f"{STYLES[name].label} {' → '.join(units.percent(run.shares.get(name, 0.0)) for run in runs)}")
        for name in names
    )
    return element("ul", *(element("li", swatch(name), text) for name, text in entries), class_="legend")


# -- figures ---------------------------------------------------------------------------------------------


def _facts(tuned: Tuned) -> list[Fact]:
    return [*_gained(tuned), *_moved(tuned), *_made(tuned)]


def _gained(tuned: Tuned) -> list[Fact]:
    speed = "Speed-up", tune_rows.value(tuned.speedup), tune_rows.bounds(tuned.speedup)
    memory = "Memory at its peak", *tune_rows.memory(tuned.saving)
    ordered = (memory, speed) if tune_rows.for_memory(tuned) else (speed, memory)
    how = "; changes measured one after the other" if tuned.in_turn else ""
    return [(name, value, f"{ends} of blocks{how}") for name, value, ends in ordered if ends]


def _moved(tuned: Tuned) -> list[Fact]:
    before, after = tuned.before, tuned.after
    if after is None:
        return [("Bottleneck", before.verdict, words.headline(before.verdict_text))]
    found = [("Bottleneck", f"{before.verdict} → {after.verdict}", "as watched before and after")]
    speeds = words.finite(before.samples_per_s), words.finite(after.samples_per_s)
    if speeds[0] is not None and speeds[1] is not None:
        both = " → ".join(f"{speed:,.0f}" if speed >= 100 else units.significant(speed) for speed in speeds if speed)
        found.append(("Throughput", f"{both} samples/s", "as watched before and after"))
    return found


def _made(tuned: Tuned) -> list[Fact]:
    made = tune_rows.rows(tuned)
    kept = sum(row.trial.status == "kept" for row in made)
    beside = f"{len(tune_rows.left_out(tuned.trials))} more not tried" if tune_rows.left_out(tuned.trials) else ""
    return [("Trials", f"{len(made)}, {kept} kept", beside)]
