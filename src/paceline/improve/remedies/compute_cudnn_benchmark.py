"""compute.cudnn_benchmark: cuDNN measures its convolution algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.facts import gain_of_removing
from paceline.improve.measured import operator_share
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_LEAST_SHARE = 0.1  # of step time in convolutions

PAGE = """
cuDNN has several algorithms for each convolution. With this setting, it runs all of them once for each new shape and
keeps the fastest. `tune` proposes this change on a CUDA device that spends at least 10% of its time in convolutions. It
does not propose this if step times vary a lot, because with changing shapes cuDNN would have to measure again and
again.

## Safety class

Numeric: another algorithm rounds differently.

## What it sets

`compute.cudnn_benchmark = true`.

## How it is confirmed

Confirmed when, at the first optimizer step, training runs on a CUDA device, the model has convolutions, and the program
has not turned the setting off.

## In the source

Write `torch.backends.cudnn.benchmark = True` once, at the start of the program.
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
