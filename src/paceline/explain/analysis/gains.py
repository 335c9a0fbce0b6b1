"""What does a change gain? From a measurement or a model where there is one; otherwise a bound, which is assumed.

A change that saves the share s of the time makes steps 1 / (1 - s) times as fast. The findings of one step share one
budget: each phase of a step can be saved once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.core.statistics import Floats, Interval, half_width, proportion_interval
from paceline.explain.model import Basis, Evidence, Finding, Gain, HotFunction, Remedy
from paceline.record.layout import PHASES

_MOST = 0.99  # share of a step that any change can save
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
_BESIDE_THE_BUDGET = ("RUN003", "HOST003")


def at_most(share: float) -> Gain:
    """Return the gain of a change that saves at most this share; how much of it is not known, so it is assumed."""
    return Gain(low=1.0, high=1 / (1 - _within(share)), basis="assumed")


def saving(share: Interval, basis: Basis = "model") -> Gain:
    """Return the gain of a change that saves a share which is known to an interval."""
    low, high = _within(share.low), _within(share.high)
    return Gain(low=1 / (1 - low), high=1 / (1 - max(low, high)), basis=basis)


def share_of_events(seconds: Floats, total_s: float, fraction: float) -> Interval:
    """Return the share of time that a fraction of some events takes, from the scatter of their durations.

    Args:
        seconds: The duration of each event.
        total_s: The time that the share refers to.
        fraction: How much of all events is counted, such as 0.9 if nine of ten are left out.
    """
    count = len(seconds)
    mean = float(seconds.mean()) if count else 0.0
    half = half_width(seconds) if count >= 3 else mean
    scale = fraction * count / max(total_s, 1e-9)
    return Interval(value=mean * scale, low=max(0.0, mean - half) * scale, high=(mean + half) * scale, count=count)


def share_of_samples(share: float, count: int, total: int, fraction: float) -> Interval:
    """Return the part of a share that some of its stack samples stand for (95% by Wilson's interval of proportions).

    Args:
        share: The share of step time that all samples stand for.
        count: Samples of the part.
        total: All samples.
        fraction: How much of the part is counted.
    """
    if total <= 0:
        return Interval(value=0.0, low=0.0, high=share * fraction, count=0)
    low, high = proportion_interval(count, total)
    scale = share * fraction
    return Interval(value=count / total * scale, low=low * scale, high=high * scale, count=total)


def twice_as_fast(share: float, functions: Sequence[HotFunction]) -> Gain:
    """Return the gain of making the function with most stack samples twice as fast.

    Args:
        share: The share of step time that all samples stand for.
        functions: The functions with most samples, the first in front.
    """
    if not functions or functions[0].share <= 0:
        return at_most(0.5 * share)
    total = round(functions[0].count / functions[0].share)
    return saving(share_of_samples(share, functions[0].count, total, 0.5))


def _within(share: float) -> float:
    return min(max(share, 0.0), _MOST)


# ---------------------------------------------------------------------------------------- gains of findings


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
        room = _within(sum(left[name] for name in phases))
        found.append(_bounded(finding, room, next((takers[p] for p in phases if p in takers), None)))
        _take(left, phases, 1 - 1 / (finding.gain.high if found[-1].gain is None else found[-1].gain.high))
        takers |= {name: finding.code for name in phases if name not in takers}
    return [found[order.index(place)] for place in range(len(found))]


def _phases_of(code: str) -> Sequence[str]:
    return ("data_wait",) if code.startswith("DATA") else _PHASES_OF.get(code, PHASES)


def _take(left: dict[str, float], phases: Sequence[str], saved: float) -> None:
    room = sum(left[name] for name in phases)
    kept = max(0.0, 1 - saved / room) if room > 0 else 0.0
    left.update({name: left[name] * kept for name in phases})


def _bounded(finding: Finding, room: float, taker: str | None) -> Finding:
    """Bound a finding's gain, and those of its remedies, by the share of the time that is left."""
    most = 1 / (1 - room)
    if finding.gain is None or finding.gain.high <= most * (1 + 1e-9):
        return finding
    told = (
        f"{taker} may save part of the same time; {100 * room:.2g}% of step time is left for this finding"
        if taker is not None
        else f"at most {100 * room:.2g}% of step time can be saved here"
    )
    remedies = [replace(r, gain=_at_most(r.gain, most)) if r.gain is not None else r for r in finding.remedies]
    overlap = Evidence(text=told, value=room, unit="share of step time")
    return replace(finding, gain=_at_most(finding.gain, most), remedies=remedies, evidence=[*finding.evidence, overlap])


def _at_most(gain: Gain, most: float) -> Gain | None:
    if most < 1 + _NOTHING:
        return None  # the overlap may also leave nothing, so an interval above what is left begins at 1
    return replace(gain, low=gain.low if gain.low < most else 1.0, high=min(gain.high, most))
