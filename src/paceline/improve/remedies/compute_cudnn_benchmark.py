"""compute.cudnn_benchmark: cuDNN measures which of its convolutions is the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.facts import gain_of_removing
from paceline.improve.measured import operator_share
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_LEAST_SHARE = 0.1  # of step time in convolutions

PAGE = """
cuDNN has several algorithms for a convolution. With this it runs them once for each new shape and keeps the fastest,
instead of guessing. Proposed on a CUDA device that spends a tenth of its time in convolutions, where step times do not
scatter: with ever other shapes it would measure without end.

## Safety class

Numeric: other algorithms round otherwise.

## What it sets

`compute.cudnn_benchmark = true`.

## How it is confirmed

At the first optimizer step training is on a CUDA device, the model has convolutions, and the program has not switched
it off itself.

## In the source

`torch.backends.cudnn.benchmark = True`, once.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    share = operator_share(situation, "convolution") if situation.on_cuda else None
    scattered = situation.finding("RUN004")
    if share is None or share < _LEAST_SHARE or scattered or situation.setting("compute", "cudnn_benchmark"):
        return []
    return [
        Candidate(
            remedy="compute.cudnn_benchmark",
            recipe={"compute": {"cudnn_benchmark": True}},
            safety="numeric",
            predicted=gain_of_removing(share, 0.0, 0.4),
            why=f"convolutions take {share:.0%} of the time",
        )
    ]


REMEDY = Remedy(id="compute.cudnn_benchmark", page=PAGE, candidates=_candidates)
