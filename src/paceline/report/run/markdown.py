"""A run as Markdown for a pull request: the verdict, a small table of phases, folded findings."""

from __future__ import annotations

from paceline.core import units
from paceline.explain.model import Diagnosis
from paceline.report import words
from paceline.report.markdown import code, escape, finding, folded
from paceline.report.phases import shown

_MARKS = {"critical": "🔴", "warning": "🟠", "good": "🟢", "info": "🔵"}


def to_markdown(diagnosis: Diagnosis) -> str:
    """Return a diagnosis as GitHub-flavoured Markdown, for a comment on a pull request."""
    parts = [
        _title(diagnosis),
        _facts(diagnosis),
        _phases(diagnosis),
        *(finding(one) for one in diagnosis.findings),
        _missing(diagnosis),
        f"<sub>paceline run {code(diagnosis.run_id)} of {code(diagnosis.command)}</sub>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _title(diagnosis: Diagnosis) -> str:
    mark = _MARKS[words.mood(diagnosis)]
    return f"### {mark} {code(diagnosis.verdict)}\n\n{escape(words.headline(diagnosis.verdict_text))}"


def _facts(diagnosis: Diagnosis) -> str:
    facts = [words.ending(diagnosis), words.device(diagnosis), *words.speed(diagnosis)]
    if diagnosis.cost is not None:
        facts.append(units.money(diagnosis.cost.run))
    return " · ".join(escape(fact) for fact in facts)


def _phases(diagnosis: Diagnosis) -> str:
    rows = [
        f"| {style.label} | {units.percent(share)} | {units.seconds(diagnosis.seconds.get(style.name))} |"
        for style, share in shown(diagnosis.shares, 0.005)
    ]
    return "\n".join(["| phase | share | time |", "|:--|--:|--:|", *rows]) if rows else ""


def _missing(diagnosis: Diagnosis) -> str:
    rows = [f"- {escape(what)}: {escape(why)}" for what, why in diagnosis.unavailable.items()]
    return folded("Not measured, and why", "\n".join(rows))
