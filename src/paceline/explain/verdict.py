"""Which finding is the verdict? Results before risks before speed, then the largest gain that is certain enough.

1. the result is worthless      CONV001, CONV002
2. time is lost                 findings with a gain; the middle of the gain's interval counts, from 5%
3. something will go wrong      MEM002, HOST002, CONV003 …: no gain in speed, but worth a word
4. nothing to say               compute-bound, or balanced
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.explain.analysis.gains import with_best_remedy, within_budget
from paceline.explain.model import Finding, Gain

NO_STEPS, TOO_SHORT, BALANCED = "no-steps", "too-short", "balanced"  # verdicts that are not findings
NOT_FINDINGS: Mapping[str, str] = {
    BALANCED: "No finding takes at least 5% of the time, so there is no single bottleneck. Findings with smaller gains "
    "are in the report of the run.",
    TOO_SHORT: "The run has too few steps for a diagnosis: at least 12 steady steps (after the warm-up) that take at "
    "least 150 ms together are needed. Let the program make more steps, for example with more epochs or a larger part "
    "of the data.",
    NO_STEPS: "Paceline saw no training step, which is an optimizer step or a backward pass of torch. The program may "
    "not train, may have ended before its first step, or may train in a process that Paceline does not watch. Watching "
    "needs torch, Python 3.11 or later, and an unchanged PYTHONPATH. To watch a launcher, type `paceline run --` and "
    "the command line of the launcher.",
}
OF_THE_MACHINE = frozenset({"HOST003", "GPU001", "GPU002", "GPU003", "GPU004", "GPU005", "COMM003"})
_RESULT_FIRST = ("CONV001", "CONV002")
_LEAST_GAIN = 1.05
_DISCOUNT = {"high": 1.0, "medium": 0.85, "low": 0.5}
# The more general finding gives way to the one that says why: it stays listed, but is not the verdict.
_YIELDS = {"HOST003": 0.6, "RUN004": 0.9, "RUN005": 1.1}
_GIVES_WAY_TO = {"RUN006": "RUN005"}  # host code to a drift, which says that this code takes ever longer


def ordered(findings: Sequence[Finding], shares: Mapping[str, float] | None = None) -> list[Finding]:
    """Return the findings, the verdict's first, with gains that share the time of one step.

    Args:
        findings: What the rules found.
        shares: The share of step time of each phase; None: gains are not bounded by them.
    """
    found = _bounded_by_straggler([with_best_remedy(f) for f in findings])
    codes = frozenset(f.code for f in found)
    in_order = sorted(found, key=lambda f: _key(f, codes), reverse=True)
    return in_order if shares is None else within_budget(in_order, shares)


def _bounded_by_straggler(findings: Sequence[Finding]) -> list[Finding]:
    """Bound what mending one rank can gain: no more than if that rank no longer made the others wait."""
    late = next((f for f in findings if f.code == "COMM002"), None)
    if late is None or late.gain is None:
        return list(findings)
    return [_bounded(f, late.gain) if list(f.ranks) == list(late.ranks) and f is not late else f for f in findings]


def _bounded(finding: Finding, most: Gain) -> Finding:
    if finding.gain is None:
        return finding
    remedies = [replace(r, gain=_at_most(r.gain, most)) if r.gain is not None else r for r in finding.remedies]
    return replace(finding, gain=_at_most(finding.gain, most), remedies=remedies, confidence="medium")


def _at_most(gain: Gain, most: Gain) -> Gain:
    return replace(gain, low=min(gain.low, most.low), high=min(gain.high, most.high))


def _key(finding: Finding, among: frozenset[str] = frozenset()) -> tuple[int, float]:
    if finding.code in _RESULT_FIRST:
        return 4, -float(_RESULT_FIRST.index(finding.code))
    if finding.gain is not None and worth(finding) >= _LEAST_GAIN:
        gives_way = _GIVES_WAY_TO.get(finding.code) in among
        return 3, 1 + 0.5 * (worth(finding) - 1) if gives_way else worth(finding)
    if finding.severity == "critical" and finding.gain is None:
        return 2, 0.0
    return (1, 0.0) if finding.severity == "info" else (0, worth(finding))


def worth(finding: Finding) -> float:
    """Return the speed-up to count on: the middle of the interval, discounted by confidence."""
    if finding.gain is None:
        return 1.0
    middle = (finding.gain.low * finding.gain.high) ** 0.5
    return 1.0 + float(middle - 1) * _DISCOUNT[finding.confidence] * _YIELDS.get(finding.code, 1.0)


def verdict_of(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return the verdict's name and sentence for ordered findings of a run with steps enough."""
    if not findings or _key(findings[0])[0] == 0:
        return BALANCED, "no single cause takes at least 5% of the time"
    return findings[0].name, findings[0].summary
