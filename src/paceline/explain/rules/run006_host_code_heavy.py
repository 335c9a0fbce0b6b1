"""RUN006: the program's own code between the phases takes a large share."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.breakdown import host_ratio
from paceline.explain.analysis.gains import at_most, saving, share_of_samples
from paceline.explain.analysis.run_analysis import TELLABLE_S, RunAnalysis
from paceline.explain.model import Confidence, Evidence, Finding, Gain, HotFunction, Remedy
from paceline.explain.rules import Rule

_MANY, _FEW = 10, 4  # least stack samples in the top function for high and for medium confidence
_LEFT_OUT = 0.9  # share of calls left out if one in ten is made

PAGE = """
## What it means

Between the phases of a step (such as the forward and the backward pass), the program runs its own Python code: metrics,
logging, plots, progress bars. The GPU is idle until the program's own Python code has finished.

## How it is detected

Paceline adds up two times: the time outside all phases of a step, and the time between the forward and the backward
pass on lines that do not compute the loss. Paceline reports `host-code-heavy` if the sum is at least 8% of step time
and at least 0.2 ms per step. To name the slow functions, Paceline takes 50 stack samples per second; a
function with fewer than 4 samples is not named. Time on lines that
prepare the input of the next forward pass counts as waiting for data. Time on the line that calls the forward or
backward pass, such as the training step of a library, is not counted, because a program cannot leave it out.

If the output of a model leads to its next input, as in reinforcement learning, the code between forward passes cannot
run less often, and Paceline proposes only to make it faster.

The expected gain of running the slowest function only every tenth step is nine tenths of its share. The interval is
that of a proportion of stack samples (Wilson).

## What helps

- `host.less_often`: run the slow Python code only every n-th step.
- `host.vectorize`: replace Python loops with tensor operations.

`paceline tune --diff` shows a suggestion for the line that runs slow Python code, but never changes the line itself.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN006, or None if it does not apply."""
    rank = analysis.first
    ratio = host_ratio(rank.record)
    share = analysis.shares["other"] * (1.0 if ratio is None else ratio)
    # The mean, not the median: the code may run in only a few of the steps.
    mean_s = sum(rank.breakdown.seconds.values()) / max(1, rank.breakdown.steps)
    if share < 0.08 or share * mean_s < TELLABLE_S:
        return None
    functions = rank.breakdown.host_functions
    where = _where(functions)
    return Finding(
        code="RUN006",
        name="host-code-heavy",
        severity="critical" if share >= 0.2 else "warning",
        confidence=_confidence(functions),
        time_share=share,
        gain=at_most(share),
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            words.share_of_step(share, "the program's own Python code between the phases of a step"),
            *(
                Evidence(
                    text=f"{f.function} takes {units.percent(f.share)} of the time in the program's own Python code "
                    f"({f.count} stack samples)",
                    value=f.share,
                    unit=words.SHARE_OF_SAMPLES,
                )
                for f in functions[:3]
            ),
        ],
        remedies=_remedies(share, functions, answers=bool(rank.record.summary.get("rollouts"))),
        summary=f"the program's own Python code between the phases of a step{where} takes {units.percent(share)} of "
        f"the time",
    )


def _where(functions: Sequence[HotFunction]) -> str:
    """Return the function with the most stack samples as text; empty if the samples are too few to name one."""
    return f" in {functions[0].function}" if functions and functions[0].count >= _FEW else ""


def _confidence(functions: Sequence[HotFunction]) -> Confidence:
    count = functions[0].count if functions else 0
    return "high" if count >= _MANY else "medium" if count >= _FEW else "low"


def _remedies(share: float, functions: Sequence[HotFunction], *, answers: bool) -> list[Remedy]:
    """Return the remedies. With `answers`, the code answers a policy (an environment) and cannot run less often."""
    where = _where(functions)
    change = f"replace Python loops{where} with tensor operations"
    if answers:
        change += ", or run several environments at once and pass their states forward as one batch"
    vectorize = Remedy(id="host.vectorize", safety="numeric", change=change, gain=at_most(share))
    change = f"if training does not need its results, run the slow Python code{where} only every tenth step"
    gain = _less_often(share, functions)
    less_often = Remedy(id="host.less_often", safety="semantic", change=change, gain=gain)
    return [vectorize] if answers else [less_often, vectorize]


def _less_often(share: float, functions: Sequence[HotFunction]) -> Gain:
    """Return the gain of running the function with most samples only every tenth time."""
    if not functions:
        return at_most(_LEFT_OUT * share)
    total = round(functions[0].count / functions[0].share)
    return saving(share_of_samples(share, functions[0].count, total, _LEFT_OUT))


RULE = Rule(code="RUN006", name="host-code-heavy", page=PAGE, check=check)
