"""The order of findings: results before risks before speed, then the largest gain that is certain enough.

The first finding is the verdict. The findings of one step share one budget: each phase of a step can be saved once.

1. the result is worthless      CONV001, CONV002
2. time is lost                 findings with a gain; the middle of the gain's interval counts, from 5%
3. something will go wrong      MEM002, HOST002, CONV003 …: no gain in speed, but worth a word
4. nothing to say               compute-bound, or balanced
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.explain.analysis.gains import within_a_step
from paceline.explain.model import Basis, Evidence, Finding, Gain, Remedy
from paceline.record.layout import PHASES

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
_NOTHING = 0.005  # share of a step below which a gain is not stated
_CERTAIN: Mapping[Basis, int] = {"measured": 2, "model": 2, "assumed": 1}
_COMPUTE = ("forward", "backward", "optimizer")
# The phases that findings draw on; those that are not listed draw on all phases.
_PHASES_OF = {
    "XFER001": ("transfer",),
    "GPU003": ("transfer",),
    "COMM001": ("communication",),
    "COMM002": ("communication",),
    "COMM004": ("communication",),
    "RUN001": ("checkpoint",),
    "RUN002": ("evaluation",),
    "RUN004": (*_COMPUTE, "transfer"),
    "RUN006": ("other", "forward"),
    "COMP002": ("forward", "backward"),
    "COMP004": _COMPUTE,
    "COMP005": _COMPUTE,
    "COMP006": _COMPUTE,
    "COMP008": ("optimizer",),
}
# Start-up is no part of a step; waiting for a core makes every phase longer, so its gain multiplies with the others.
_MORE_THAN_ITS_PHASE = ("DATA002",)  # workers that use all cores slow computing down too
_BESIDE_THE_BUDGET = ("RUN003", "HOST003")


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


def with_best_remedy(finding: Finding) -> Finding:
    """Give a finding the gain of its best remedy, and list that one first.

    What is modelled or measured goes before what is assumed; of those alike, the one with the larger middle.
    """
    known = [remedy for remedy in finding.remedies if remedy.gain is not None]
    if not known or finding.gain is None:
        return finding
    best = max(known, key=_rank)
    return replace(finding, gain=best.gain, remedies=[best, *(r for r in finding.remedies if r is not best)])


def _rank(remedy: Remedy) -> tuple[int, float]:
    gain = remedy.gain or Gain(low=1.0, high=1.0)
    worth_it = gain.high > 1.0 + _NOTHING
    return _CERTAIN[gain.basis] * worth_it, gain.low * gain.high


def within_budget(findings: Sequence[Finding], shares: Mapping[str, float]) -> list[Finding]:
    """Bound the gains of findings in their order, so that each phase of a step is saved once.

    Args:
        findings: The verdict's first.
        shares: The share of step time of each phase.
    """
    left = {name: float(shares.get(name, 0.0)) for name in PHASES}
    takers: dict[str, str] = {}  # phase: the finding that claimed most of it first
    found = []
    general = [_phases_of(one.code) is PHASES for one in findings]
    order = sorted(range(len(findings)), key=general.__getitem__)  # what draws on all phases has what is left
    for finding in (findings[place] for place in order):
        if finding.gain is None or finding.code in _BESIDE_THE_BUDGET or not sum(shares.values()):
            found.append(finding)
            continue
        phases = _phases_of(finding.code)
        if finding.code in _MORE_THAN_ITS_PHASE:
            found.append(finding)
        else:
            left_share = within_a_step(sum(left[name] for name in phases))
            taker = next((takers[p] for p in phases if p in takers), None)
            found.append(_within_share_left(finding, left_share, taker))
        _take(left, phases, 1 - 1 / (finding.gain.high if found[-1].gain is None else found[-1].gain.high))
        takers |= {name: finding.code for name in phases if name not in takers}
    return [found[order.index(place)] for place in range(len(found))]


def _phases_of(code: str) -> Sequence[str]:
    return ("data_wait",) if code.startswith("DATA") else _PHASES_OF.get(code, PHASES)


def _take(left: dict[str, float], phases: Sequence[str], saved: float) -> None:
    left_share = sum(left[name] for name in phases)
    kept = max(0.0, 1 - saved / left_share) if left_share > 0 else 0.0
    left.update({name: left[name] * kept for name in phases})


def _within_share_left(finding: Finding, left_share: float, taker: str | None) -> Finding:
    """Bound a finding's gain, and those of its remedies, by the share of the time that is left."""
    most = 1 / (1 - left_share)
    if finding.gain is None or finding.gain.high <= most * (1 + 1e-9):
        return finding
    told = (
        f"{taker} may save part of the same time; {100 * left_share:.2g}% of step time is left for this finding"
        if taker is not None
        else f"at most {100 * left_share:.2g}% of step time can be saved here"
    )
    remedies = [replace(r, gain=_bounded_gain(r.gain, most)) if r.gain is not None else r for r in finding.remedies]
    overlap = Evidence(text=told, value=left_share, unit="share of step time")
    return replace(
        finding, gain=_bounded_gain(finding.gain, most), remedies=remedies, evidence=[*finding.evidence, overlap]
    )


def _bounded_gain(gain: Gain, most: float) -> Gain | None:
    if most < 1 + _NOTHING:
        return None  # the overlap may also leave nothing, so an interval above what is left begins at 1
    return replace(gain, low=gain.low if gain.low < most else 1.0, high=min(gain.high, most))


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


def measured_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in the same order, but those whose gain is only assumed last."""
    return sorted(findings, key=lambda f: f.gain is not None and f.gain.basis == "assumed")


def verdict_of(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return the verdict's name and sentence for ordered findings of a run with steps enough."""
    if not findings or _key(findings[0])[0] == 0:
        return BALANCED, "no single cause takes at least 5% of the time"
    return findings[0].name, findings[0].summary
