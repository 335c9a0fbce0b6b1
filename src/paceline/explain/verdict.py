"""The order of findings. The first finding is the verdict.

1. The result of the run is useless: CONV001, CONV002.
2. Time is lost: findings with a gain of at least 5%, by the middle of the gain's interval, discounted by confidence.
3. A problem will come: MEM002, HOST002, CONV003 …, which have no gain in speed.
4. No problem: compute-bound, or balanced.

The gains of all findings together have a limit: the time of each phase of a step can be saved only once.
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
    "needs torch, Python 3.11 or later, and an unchanged PYTHONPATH. `env -i` and `sudo` clear PYTHONPATH: type "
    "`paceline run` after them. To watch a launcher, type `paceline run --` and the command line of the launcher.",
}
OF_THE_MACHINE = frozenset({"HOST003", "GPU001", "GPU002", "GPU003", "GPU004", "GPU005", "COMM003"})
_RESULT_FIRST = ("CONV001", "CONV002")
_LEAST_GAIN = 1.05
_DISCOUNT = {"high": 1.0, "medium": 0.85, "low": 0.5}
# Factors on the gain of general findings, so that a more specific finding becomes the verdict.
_YIELDS = {"HOST003": 0.6, "RUN004": 0.9, "RUN005": 1.1}
_GIVES_WAY_TO = {"RUN006": "RUN005"}  # if host code (RUN006) takes ever longer, the drift (RUN005) is the verdict
_NOTHING = 0.005  # share of a step below which no gain is stated
_CERTAIN: Mapping[Basis, int] = {"measured": 2, "model": 2, "assumed": 1}
_COMPUTE = ("forward", "backward", "optimizer")
# The phases whose time a finding can save. Findings that are not listed can save time in all phases.
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
    "HOST004": _COMPUTE,
    "HOST005": _COMPUTE,
    "COMP002": ("forward", "backward"),
    "COMP004": _COMPUTE,
    "COMP005": _COMPUTE,
    "COMP006": _COMPUTE,
    "COMP008": ("optimizer",),
}
# Workers that use all cores slow down the computation too, so their gain is not limited to their phase.
_MORE_THAN_ITS_PHASE = ("DATA002",)
# Start-up is not part of a step. Waiting for a core makes every phase longer, so its gain multiplies with the others.
_BESIDE_THE_BUDGET = ("RUN003", "HOST003")


def ordered(findings: Sequence[Finding], shares: Mapping[str, float] | None = None) -> list[Finding]:
    """Return the findings, the verdict first. Together the gains of all findings save each part of a step only once.

    Args:
        findings: The findings of the rules.
        shares: Share of step time of each phase, or None to leave the gains unbounded.
    """
    found = _bounded_by_straggler([with_best_remedy(f) for f in findings])
    codes = frozenset(f.code for f in found)
    in_order = sorted(found, key=lambda f: _key(f, codes), reverse=True)
    return in_order if shares is None else within_budget(in_order, shares)


def _bounded_by_straggler(findings: Sequence[Finding]) -> list[Finding]:
    """Bound the gains of findings about the straggler by the gain if no other rank waited for the straggler."""
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
    """Return the finding with the gain of its best remedy, and with that remedy first.

    Measured or modelled gains rank before assumed gains, then larger gains before smaller ones.
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
    """Bound the gains of findings in their order, so that the time of each phase is saved only once.

    Args:
        findings: The findings, the verdict first.
        shares: Share of step time of each phase.
    """
    left = {name: float(shares.get(name, 0.0)) for name in PHASES}
    takers: dict[str, str] = {}  # for each phase, the first finding that saves time in it
    found = []
    general = [_phases_of(one.code) is PHASES for one in findings]
    # findings that use all phases come last and get the time that is left
    order = sorted(range(len(findings)), key=general.__getitem__)
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
    """Bound the gain of a finding and of its remedies by the share of step time that is left.

    `taker` is the code of an earlier finding that may save part of the same time, or None. The evidence then names that
    finding.
    """
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
        return None  # other findings may also leave nothing, so a gain above the limit starts at 1
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
    """Return the speed-up to rank by: the middle of the gain's interval, discounted by confidence."""
    if finding.gain is None:
        return 1.0
    middle = (finding.gain.low * finding.gain.high) ** 0.5
    return 1.0 + float(middle - 1) * _DISCOUNT[finding.confidence] * _YIELDS.get(finding.code, 1.0)


def measured_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in the same order, but findings with an assumed gain last."""
    return sorted(findings, key=lambda f: f.gain is not None and f.gain.basis == "assumed")


def verdict_of(findings: Sequence[Finding]) -> tuple[str, str]:
    """Return the name and the sentence of the verdict, given ordered findings of a run with enough steps."""
    if not findings or _key(findings[0])[0] == 0:
        return BALANCED, "no single cause takes at least 5% of the time"
    return findings[0].name, findings[0].summary
