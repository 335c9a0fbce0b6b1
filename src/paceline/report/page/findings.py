"""The section of findings: their evidence, the source lines that they name, and their remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core import units
from paceline.explain.model import Diagnosis, Finding, Gain, Remedy, SourceLines
from paceline.report import words
from paceline.report.page.markup import Markup, details, element, join, section, sentence, table
from paceline.report.page.next_step import SAFETY, badge
from paceline.report.page.source import in_finding

OPEN = 3  # number of findings that are initially unfolded


def findings(diagnosis: Diagnosis) -> Markup | None:
    """Return the section with the findings of a run, the verdict's finding first; None without findings."""
    found = [replace(one, evidence=words.evidence(one, diagnosis)) for one in diagnosis.findings]
    return listed(found, diagnosis.verdict_text, diagnosis.sources)


def listed(found: Sequence[Finding], said: str, sources: Mapping[str, SourceLines] | None = None) -> Markup | None:
    """Return the section with the given findings; None without findings.

    Args:
        found: The findings, the verdict's first.
        said: The text in the head of the page; a summary that is equal to this text is left out.
        sources: The source lines of functions, by the name that findings use.
    """
    if not found:
        return None
    scale = max((one.gain.high for one in found if one.gain is not None), default=2.0)
    cards = (_card(one, scale, said, sources or {}, open_=i < OPEN) for i, one in enumerate(found))
    return section("findings", "Findings", *cards, _key(found))


def _card(finding: Finding, scale: float, said: str, sources: Mapping[str, SourceLines], *, open_: bool) -> Markup:
    head = (
        element("code", finding.code),
        element("h3", finding.name),
        element("span", finding.severity, class_=f"badge {finding.severity}"),
        element("span", f"{finding.confidence} confidence", class_="quiet"),
    )
    body = (
        element("p", sentence(words.headline(finding.summary)), class_="summary") if finding.summary != said else None,
        _costs(finding, scale),
        _evidence(finding),
        *in_finding(finding, sources),
        _remedies(finding.remedies),
        element("p", "More: ", element("code", f"paceline explain {finding.code}"), class_="quiet"),
    )
    return details(join(head), *body, open_=open_, class_=f"finding {finding.severity}")


def _costs(finding: Finding, scale: float) -> Markup | None:
    entries: list[tuple[str, str | Markup]] = []
    if finding.time_share is not None:
        entries.append(("takes", f"{units.percent(finding.time_share)} of step time"))
    if finding.gain is not None:
        entries.append(("gain to expect", join((gain_bar(finding.gain, scale), words.gain(finding.gain)))))
    if len(finding.ranks) > 1 or (finding.ranks and finding.ranks[0] != 0):
        entries.append(("on rank" + "s" * (len(finding.ranks) > 1), words.number_list(finding.ranks)))
    if not entries:
        return None
    return element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in entries), class_="costs")


def gain_bar(gain: Gain, scale: float) -> Markup:
    """Return the interval of a speed-up as a bar, on a scale from 1x (no gain) to ``scale``."""
    width = max(scale, 1.05) - 1.0
    low, high = (min(1.0, max(0.0, (value - 1.0) / width)) for value in (gain.low, gain.high))
    style = f"left:{100 * low:.1f}%;width:{max(2.0, 100 * (high - low)):.1f}%"
    return element("span", element("span", style=style), class_="gain", aria_hidden="true")


def _evidence(finding: Finding) -> Markup | None:
    if not finding.evidence:
        return None
    return element("ul", *(element("li", sentence(one.text)) for one in finding.evidence), class_="evidence")


def _remedies(remedies: Sequence[Remedy]) -> Markup | None:
    if not remedies:
        return None
    heads = (("What to change", ""), ("Safety", ""), ("Gain", "num"))
    return table(heads, (_remedy(one) for one in remedies), class_="remedies")


def _remedy(remedy: Remedy) -> tuple[str | Markup, ...]:
    badge = element("span", remedy.safety, class_=f"badge {remedy.safety}", title=SAFETY[remedy.safety])
    gain = words.gain(remedy.gain) if remedy.gain is not None else "not estimated"
    change = join((sentence(remedy.change), " ", element("small", element("code", remedy.id))))
    return change, badge, gain


def _key(found: Sequence[Finding]) -> Markup | None:
    """Return an explanation of the safety classes that appear in the findings; None if none appears."""
    used = {remedy.safety for one in found for remedy in one.remedies}
    entries = [badge(name, meaning) for name, meaning in SAFETY.items() if name in used]
    return element("p", *(element("span", entry) for entry in entries), class_="key quiet") if entries else None
