"""The head of a trace page: the verdict, what to do first, the mean use of the GPUs, the main numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from paceline.core import units
from paceline.explain.diagnose import capture_verdict
from paceline.explain.model import Finding
from paceline.report import words
from paceline.report.page.chart import legend
from paceline.report.page.markup import Markup, element, join, sentence
from paceline.report.page.next_step import SAFETY, badge, first_step
from paceline.report.page.verdict import Fact, facts
from paceline.report.trace.ranks import NAMES, part_bar
from paceline.traces import WINDOWS
from paceline.traces.analyze.across_ranks import shares_of
from paceline.traces.analyze.ranks import Traces

_MARKS = {"critical": "▲", "warning": "▲", "good": "✓", "info": "●"}


def header(traces: Traces, findings: Sequence[Finding], next_command: str) -> Markup:
    """Return the head of the page."""
    verdict = capture_verdict(traces, findings)
    mood = findings[0].severity if findings else "good" if verdict else "info"
    chip = [element("span", _MARKS[mood], aria_hidden="true"), element("strong", verdict or "no verdict")]
    chip += [element("code", findings[0].code)] if findings else []
    return element(
        "header",
        element("p", element("b", "paceline trace"), element("span", _devices(traces)), class_="brand"),
        element("p", *chip, class_=f"chip {mood}"),
        element("h1", sentence(words.headline(said(traces, findings)))),
        element("p", about(traces), class_="meta"),
        _first(findings, next_command),
        _hero(traces),
        facts(_facts(traces)),
    )


def _first(findings: Sequence[Finding], next_command: str) -> Markup | None:
    if not findings and not next_command:
        return None
    return first_step(first_sentence(findings), details=_known(findings), command=next_command)


def first_sentence(findings: Sequence[Finding]) -> str:
    """Return what to do first: the first remedy of the first finding, or that no change is needed."""
    if not findings:
        return "No change is needed; look at single kernels in Perfetto"
    remedies = findings[0].remedies
    return words.headline(remedies[0].change) if remedies else f"Read what {findings[0].name} means"


def _known(findings: Sequence[Finding]) -> list[str | Markup]:
    remedy = findings[0].remedies[0] if findings and findings[0].remedies else None
    if remedy is None:
        return []
    known: list[str | Markup] = [badge(remedy.safety, SAFETY[remedy.safety])]
    if remedy.gain is not None:
        known.append(join((element("b", words.gain(remedy.gain)), " expected speed-up of a step")))
    return known


def said(traces: Traces, findings: Sequence[Finding]) -> str:
    """Return the verdict as a sentence."""
    if findings:
        return findings[0].summary
    if capture_verdict(traces, findings) is None:
        return "the captures contain no GPU events in the window"
    return "no problem takes so much time that a change is worthwhile"


def about(traces: Traces) -> str:
    """Return text on the number of analyzed files and ranks, and on the analyzed part (window) of the time."""
    window = traces.ranks[0].window
    files, ranks = words.count(len(traces.files), "file"), words.count(len(traces.ranks), "rank")
    return f"{files}, {ranks}; window {window}: {WINDOWS[window]}"


def _devices(traces: Traces) -> str:
    names = {rank.gpu for rank in traces.ranks if rank.gpu is not None}
    return ", ".join(sorted(names)) or "device not recorded"


def _hero(traces: Traces) -> Markup | None:
    """Return the mean over ranks of the shares of GPU time as one bar; None without GPU events."""
    each = [shares_of(rank) for rank in traces.ranks if rank.breakdown.span_ns]
    if not each:
        return None
    parts = {name: mean(one[name] for one in each) for name in NAMES}
    key = legend(
        [
            (class_, f"{title} {units.percent(parts[name])}")
            for name, (class_, title) in NAMES.items()
            if parts[name] > 0
        ]
    )
    return element("div", part_bar(parts, named=True), key, class_="hero")


def _facts(traces: Traces) -> list[Fact]:
    found: list[Fact] = []
    spans = [rank.breakdown.span_ns / 1e9 for rank in traces.ranks if rank.breakdown.span_ns]
    if spans:
        found.append(
            (
                "From first to last GPU event",
                words.span(min(spans), max(spans)),
                f"over {words.count(len(spans), 'rank')}",
            )
        )
    events = sum(rank.breakdown.events for rank in traces.ranks)
    found.append(
        ("GPU events", f"{events:,}", f"{len({k.name for r in traces.ranks for k in r.kernels}):,} distinct kernels")
    )
    if traces.matched.collectives:
        waited = sum(one.waited_ns for one in traces.matched.collectives) / 1e9
        count = words.count(len(traces.matched.collectives), "collective")
        found.append(("Ranks waiting for each other", units.seconds(waited), f"sum over ranks, in {count}"))
    return found
