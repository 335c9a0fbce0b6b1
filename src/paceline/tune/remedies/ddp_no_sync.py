"""ddp.no_sync: only the last backward pass of a step exchanges gradients."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
If a program accumulates gradients over micro-steps (one forward and one backward pass each), the ranks need to exchange
gradients only once, before the optimizer step. Paceline counts the backward passes of the first steps. In later steps,
only the last backward pass of a step exchanges gradients. If a step has fewer backward passes than expected, as at the
end of an epoch, the ranks exchange gradients before the program clips or uses them. If every micro-step exchanges
gradients, `tune` proposes `ddp.no_sync`.

## Safety class

The safety class is numeric, because the order of additions changes: gradients are added over micro-steps first, and
over ranks second.

## What it sets

This remedy sets `ddp.no_sync = true`.

## How it is confirmed

Paceline records `ddp.no_sync` as applied when two steps in a row have the same number of backward passes, and each of
the two steps has at least two backward passes. The setting has no effect if the program uses `no_sync()` itself, if
several models exchange gradients, or if a model uses `find_unused_parameters`.

## In the source

Put `with model.no_sync():` around the forward and backward pass of all micro-steps except the last.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    often = context.finding("COMM004")
    if often is None or context.setting("ddp", "no_sync"):
        return []
    return [
        Candidate(
            remedy="ddp.no_sync",
            recipe={"ddp": {"no_sync": True}},
            safety="numeric",
            predicted=context.gain_of("ddp.no_sync"),
            why=often.summary,
        )
    ]


REMEDY = TunableRemedy(id="ddp.no_sync", page=PAGE, candidates=_candidates)
