"""The head of a run's page: the verdict, what to do first, and the main numbers."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.explain.model import Diagnosis, Remedy
from paceline.explain.next_step import NextStep
from paceline.report import words
from paceline.report.page.chart import legend, phase_bar
from paceline.report.page.markup import Markup, element, join, sentence
from paceline.report.page.next_step import SAFETY, badge, first_step
from paceline.report.phases import shown

MAX_PROBLEMS = 20
Fact = tuple[str, str, str]  # name, value, and a remark


def header(diagnosis: Diagnosis, following: NextStep | None) -> Markup:
    """Return the head of the page."""
    mood = words.mood(diagnosis)
    device = words.device(diagnosis)
    ended = element(
        "b", words.ending_and_time(diagnosis), class_="ended-badly" if words.ended_badly(diagnosis) else None
    )
    return element(
        "header",
        element("p", element("b", "paceline"), element("span", diagnosis.run_id), class_="brand"),
        element("p", *_chip(diagnosis), class_=f"chip {mood}"),
        element("h1", sentence(words.headline(diagnosis.verdict_text))),
        element("p", ended, f" · {device}" if device else "", class_="meta"),
        _first(diagnosis, following),
        _own(diagnosis),
        _phases(diagnosis),
        facts(_facts(diagnosis)),
        element("pre", element("code", diagnosis.command), class_="command", tabindex="0", aria_label="The program"),
    )


def _first(diagnosis: Diagnosis, following: NextStep | None) -> Markup | None:
    """Return the box with the recommended remedy and the next command; None without both."""
    remedy = words.recommended(diagnosis)
    if remedy is None and following is None:
        return None
    what, command = (words.headline(following.text), following.command or "") if following is not None else ("", "")
    if remedy is None:
        healthy = diagnosis.verdict in words.HEALTHY
        first, before = ("Nothing needs a change", what) if healthy else (what, "")
        return first_step(first, details=[], command=command, title="Next step", before=before)
    return first_step(words.headline(remedy.change), details=_known(remedy), command=command, before=f"{what}:")


def _own(diagnosis: Diagnosis) -> Markup | None:
    """Return text on the possible gain in the program itself, if the verdict is about the machine; otherwise None."""
    own = words.own_finding(diagnosis)
    if own is None:
        return None
    gain = f": {words.gain(own.gain)} expected" if own.gain is not None else ""
    known = f"In the program itself, {own.name} ({own.code}{gain}): {own.summary}."
    change = f" Proposed change: {own.remedies[0].change}." if own.remedies else ""
    return element("p", words.printable(known + change), class_="meta")


def _known(remedy: Remedy | None) -> list[str | Markup]:
    if remedy is None:
        return []
    known: list[str | Markup] = [badge(remedy.safety, SAFETY[remedy.safety])]
    if remedy.gain is not None:
        known.append(join((element("b", words.gain(remedy.gain)), " expected speed-up of a step")))
    return known


def _phases(diagnosis: Diagnosis) -> Markup | None:
    phases = shown(diagnosis.shares)
    if not phases:
        return None
    key = legend([(style.name, f"{style.label} {units.percent(share)}") for style, share in phases])
    return element("div", phase_bar(diagnosis.shares, named=True), key, class_="hero")


def facts(entries: list[Fact]) -> Markup | None:
    """Return a list of numbers, each with its name and a remark; None if empty."""
    if not entries:
        return None
    return element("dl", *(_fact(*entry) for entry in entries), class_="facts")


def _fact(what: str, how_much: str, beside: str) -> Markup:
    more = element("dd", beside, class_="beside") if beside else None
    return element("div", element("dt", what), element("dd", how_much), more)


def _chip(diagnosis: Diagnosis) -> list[str | Markup]:
    finding = words.verdict_finding(diagnosis)
    mark = element("span", words.mark(diagnosis), aria_hidden="true")
    name = element("strong", diagnosis.verdict)
    return [mark, name] if finding is None else [mark, name, element("code", finding.code)]


def _facts(diagnosis: Diagnosis) -> list[Fact]:
    return [*_speed(diagnosis), *_use(diagnosis)]


def _speed(diagnosis: Diagnosis) -> list[Fact]:
    found: list[Fact] = []
    step = diagnosis.step_s
    if step is not None:
        value, _, interval = words.confident(step).partition(" (")
        over = f"{interval.removesuffix(')')}, {words.count(step.count, 'step')}" if interval else ""
        found.append(("Step time, median", value, over or words.count(step.count, "step")))
    if words.finite(diagnosis.p95_s) is not None:
        found.append(("Step time, 95th percentile", units.seconds(diagnosis.p95_s), "one step in 20 is slower"))
    if words.finite(diagnosis.samples_per_s) is not None:
        found.append(("Throughput", units.rate(diagnosis.samples_per_s, "samples/s"), _throughput(diagnosis)))
    steps = words.steps_of(diagnosis.ranks)
    if steps:
        found.append(("Steps", f"{steps:,}", f"{diagnosis.ranks[0].warmup:,} of them warm-up, left out"))
    return found


def _throughput(diagnosis: Diagnosis) -> str:
    batch = "" if diagnosis.batch_size is None else f"; batches of {diagnosis.batch_size:,g}"
    return words.OVER + batch + (" on each rank" if batch and diagnosis.world > 1 else "")


def _use(diagnosis: Diagnosis) -> list[Fact]:
    found: list[Fact] = []
    if words.finite(diagnosis.mfu) is not None:
        found.append(("Model FLOPs utilization", units.percent(diagnosis.mfu), "of the device's peak arithmetic"))
    if words.finite(diagnosis.startup_s) is not None:
        found.append(("Start-up", units.seconds(diagnosis.startup_s), "before the first step"))
    if diagnosis.cost is not None:
        idle = f"{units.percent(diagnosis.cost.idle_share)} of the cost for time in which nothing was computed"
        found.append(("Cost", units.money(diagnosis.cost.run), idle))
    return found


def problems(found: Sequence[str], title: str) -> Markup | None:
    """Return a list of problems, such as files that could not be read; None if empty."""
    if not found:
        return None
    items = [element("li", problem) for problem in found[:MAX_PROBLEMS]]
    more = len(found) - MAX_PROBLEMS
    if more > 0:
        items.append(element("li", f"and {more:,} more"))
    return element("aside", element("p", title), element("ul", *items))
