"""Text that all reports share: quantities with units, intervals, and states of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from paceline.core import units
from paceline.core.statistics import Interval
from paceline.explain.model import Diagnosis, Evidence, Finding, Gain, RankBreakdown, Remedy
from paceline.explain.verdict import OF_THE_MACHINE, measured_first
from paceline.explain.words import SHARE_OF_SAMPLES
from paceline.record.layout import PHASES
from paceline.report.phases import STYLES

OVER = "over the steady steps"  # basis of samples/s: all steady steps together, slow ones included
count = units.count
HEALTHY = ("compute-bound", "balanced")  # verdicts that need no action
_FAILED = re.compile(r"exited with code \d+(?=: )")
_UNIT = re.compile(r"(?<=[0-9]) ?[^0-9 .,]+$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return text as one line without control characters, which could move the cursor or reverse the text."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\n", " ").replace("\t", " "))


def finite(value: float | None) -> float | None:
    """Return the value, or None if it is missing, NaN or infinite."""
    return None if value is None or not math.isfinite(value) else value


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else units.significant(value)


_BY_UNIT: Mapping[str, Callable[[float], str]] = {
    "s": units.seconds,
    "bytes": units.size,
    "B": units.size,
    "bytes/s": lambda value: f"{units.size(value)}/s",
    "share": units.percent,
    "fraction": units.percent,
    "%": lambda value: units.percent(value / 100),
    "x": units.factor,
    "factor": units.factor,
    "USD": units.money,
    "": _number,
}


def quantity(value: float | None, unit: str) -> str:
    """Return a number with its unit as text. The unit ``share`` means a fraction of one, ``%`` a number out of 100."""
    if value is None or not math.isfinite(value):
        return units.MISSING
    known = _BY_UNIT.get(unit)
    number = _number(value)
    return known(value) if known else f"{number} {units.of_one(unit) if number == '1' else unit}"


def span(low: float, high: float, unit: str = "s") -> str:
    """Return the bounds of a quantity as text: ``405 to 420 ms``; a single number if both look equal."""
    first, second = quantity(low, unit), quantity(high, unit)
    if first == second:
        return first
    number, _, suffix = first.rpartition(" ")
    return f"{number} to {second}" if number and second.endswith(" " + suffix) else f"{first} to {second}"


def interval(value: Interval, unit: str = "s") -> str:
    """Return a quantity with its confidence interval as text: ``412 ms (95% CI 405–420)``."""
    return f"{quantity(value.value, unit)} ({confidence(value, unit)})"


def confidence(value: Interval, unit: str = "s") -> str:
    """Return a confidence interval as text: ``95% CI 405–420``, with units only if they differ from the value's."""
    texts = [quantity(number, unit) for number in (value.value, value.low, value.high)]
    numbers = [_UNIT.sub("", text) for text in texts]
    units_of = {text.removeprefix(number) for text, number in zip(texts, numbers, strict=True)}
    alike = len(units_of) == 1 and not any(" " in number for number in numbers)
    low, high = (numbers if alike else texts)[1:]
    return f"95% CI {low}–{high}"


def confident(value: Interval) -> str:
    """Return a duration with its 95% interval in one unit as text: ``98.8 ms (95% CI 97.3–101)``."""
    shown = quantity(value.value, "s")
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if shown.endswith(f" {unit}") and " " not in shown.removesuffix(f" {unit}"):
            low, high = (units.significant(end * scale) for end in (value.low, value.high))
            return f"{shown} (95% CI {low}–{high})" if low != high else shown
    return f"{shown} (95% CI {span(value.low, value.high)})"


def gain(value: Gain) -> str:
    """Return an expected speed-up as text: ``1.55x to 2.10x``, or ``up to 1.20x (assumed)`` if there can be no gain."""
    return factors(value) + (f" ({value.basis})" if value.basis == "assumed" and value.high > 1.0 else "")


def factors(value: Gain) -> str:
    """Return the bounds of an expected speed-up as text, without saying whether it was assumed or measured."""
    if value.low <= 1.0:
        return f"up to {units.factor(value.high)}" if value.high > 1.0 else "none"
    return span(value.low, value.high, "x")


def device(diagnosis: Diagnosis) -> str:
    """Return the devices of a run as text: ``8 × NVIDIA H100``."""
    name = printable(diagnosis.device_name or diagnosis.device)
    return f"{diagnosis.world} × {name}" if diagnosis.world > 1 else name


def steps_of(ranks: Sequence[RankBreakdown]) -> int:
    """Return the number of steps of a run, which is that of the rank with the most steps."""
    return max((rank.steps for rank in ranks), default=0)


def speed(diagnosis: Diagnosis) -> list[str]:
    """Return texts on the speed of a run: steps, the median step with its interval, samples per second."""
    parts = []
    steps = steps_of(diagnosis.ranks)
    if steps:
        parts.append(count(steps, "step"))
    if diagnosis.step_s is not None:
        parts.append(f"median {confident(diagnosis.step_s)}")
    if finite(diagnosis.samples_per_s) is not None:
        parts.append(f"{units.rate(diagnosis.samples_per_s, 'samples/s')} {OVER}")
    return parts


def evidence(finding: Finding, diagnosis: Diagnosis) -> list[Evidence]:
    """Return the evidence of a finding; evidence that the summary already states comes last.

    The median step time is left out, because a report shows it elsewhere.
    """
    step_s = diagnosis.step_s.value if diagnosis.step_s is not None else None
    shown = [one for one in finding.evidence if one.unit != "s" or one.value is None or one.value != step_s]
    return sorted(shown, key=lambda one: _rank(one, finding))


def _rank(evidence: Evidence, finding: Finding) -> int:
    """Return the sort key of evidence: 0 for a function, 2 for the share in the summary, 1 for all other evidence."""
    if evidence.unit == SHARE_OF_SAMPLES:
        return 0
    return 2 if evidence.value is not None and evidence.value == finding.time_share else 1


def recommended(diagnosis: Diagnosis) -> Remedy | None:
    """Return the remedy to try first, which is the first of the verdict's finding; None without one."""
    finding = verdict_finding(diagnosis)
    return finding.remedies[0] if finding is not None and finding.remedies else None


def verdict_finding(diagnosis: Diagnosis) -> Finding | None:
    """Return the finding that the verdict names; None if it names none."""
    named = (finding for finding in diagnosis.findings if finding.name == diagnosis.verdict)
    return next(named, None)


def own_finding(diagnosis: Diagnosis) -> Finding | None:
    """Return the first finding about the program itself, if the verdict is about the machine; otherwise None.

    A finding with an assumed gain comes after those whose gain follows from measurements.
    """
    verdict = verdict_finding(diagnosis)
    if verdict is None or verdict.code not in OF_THE_MACHINE:
        return None
    others = [f for f in diagnosis.findings if f.code not in OF_THE_MACHINE and f.severity != "info"]
    return next(iter(measured_first(others)), None)


def ended_badly(diagnosis: Diagnosis) -> bool:
    """Return whether the program ended with an error."""
    return diagnosis.exit_code not in (None, 0)


def ending(diagnosis: Diagnosis) -> str:
    """Return how the program ended, as text: ``finished``, ``killed by SIGKILL (out of memory), exit code 137``."""
    text = printable(diagnosis.ended)
    if ended_badly(diagnosis) and str(diagnosis.exit_code) not in text:
        text += f", exit code {diagnosis.exit_code}"
    return text


def ending_and_time(diagnosis: Diagnosis) -> str:
    """Return how and after what time the program ended, as text. The time comes before the message of an exception."""
    after = "" if diagnosis.wall_s is None else f" after {units.seconds(diagnosis.wall_s)}"
    text = ending(diagnosis)
    failed = _FAILED.match(text)
    return f"{text}{after}" if failed is None else f"{failed[0]}{after}{text[failed.end() :]}"


def mood(diagnosis: Diagnosis) -> str:
    """Return the style of the verdict: ``critical``, ``warning``, ``good`` or ``info``."""
    finding = verdict_finding(diagnosis)
    if finding is not None and finding.severity != "info":
        return finding.severity
    if ended_badly(diagnosis):
        return "critical"
    return "good" if diagnosis.verdict in HEALTHY else "info"


def mark(diagnosis: Diagnosis) -> str:
    """Return the sign before the verdict: a cross for a failure, a triangle for lost time, a tick, or a dot."""
    finding = verdict_finding(diagnosis)
    shown = mood(diagnosis)
    if shown == "critical":
        return "▲" if finding is not None and finding.gain is not None else "✗"
    return {"warning": "▲", "good": "✓"}.get(shown, "●")


def headline(text: str) -> str:
    """Return a sentence with a capital letter, unless its first word is a name such as ``torch.save``."""
    clean = printable(text)
    first = clean.partition(" ")[0]
    return clean[0].upper() + clean[1:] if first.isalpha() and first.islower() else clean


def rank_spread(ranks: Sequence[RankBreakdown], floor: float = 0.05) -> str:
    """Return the phases in which ranks differ most: ``data wait 2.1% (rank 0) to 38% (rank 5)``; empty if none."""
    if len(ranks) < 2:
        return ""
    parts = sorted(((*_extremes(ranks, name), STYLES[name].label) for name in PHASES), reverse=True)
    return ", ".join(f"{label} {text}" for width, text, label in parts[:2] if width >= floor)


def _extremes(ranks: Sequence[RankBreakdown], phase: str) -> tuple[float, str]:
    low = min(ranks, key=lambda rank: rank.shares.get(phase, 0.0))
    high = max(ranks, key=lambda rank: rank.shares.get(phase, 0.0))
    first, last = low.shares.get(phase, 0.0), high.shares.get(phase, 0.0)
    text = f"{units.percent(first)} (rank {low.rank}) to {units.percent(last)} (rank {high.rank})"
    return last - first, text


def number_list(numbers: Sequence[int], most: int = 8) -> str:
    """Return whole numbers as text, with ranges: ``0–3, 7``; at most `most` ranges or single numbers."""
    pieces = _ranges(sorted(set(numbers)))
    text = ", ".join(pieces[:most])
    return text if len(pieces) <= most else f"{text} and more"


def _ranges(numbers: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
