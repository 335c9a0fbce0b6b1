"""compute.cudnn_benchmark: cuDNN measures its convolution algorithms."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.analysis.run_analysis import gain_of_removing
from paceline.tune.candidates import Candidate, DiagnosisContext, operator_share
from paceline.tune.remedies import TunableRemedy

_LEAST_SHARE = 0.1  # least share of step time in convolutions

PAGE = """
cuDNN has several algorithms for each convolution. With `compute.cudnn_benchmark`, cuDNN runs all convolution algorithms
once for each new input shape, and uses the fastest one from then on. `tune` proposes `compute.cudnn_benchmark` if the
program spends at least 10% of its time in convolutions on a CUDA device. If step times vary a lot, `tune` does not
propose this change, because input shapes may vary, and cuDNN measures again for each new shape.

## Safety class

The safety class is numeric, because another convolution algorithm rounds differently.

## What it sets

This remedy sets `compute.cudnn_benchmark = true`.

## How it is confirmed

Paceline checks `compute.cudnn_benchmark` at the first optimizer step. Paceline records the setting as applied if
training runs on a CUDA device, the model has convolutions, and the program has not turned the setting off.

## In the source

Write `torch.backends.cudnn.benchmark = True` once, at the start of the program.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    share = operator_share(context, "convolution") if context.on_cuda else None
    scattered = context.finding("RUN004")
    if share is None or share < _LEAST_SHARE or scattered or context.setting("compute", "cudnn_benchmark"):
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


REMEDY = TunableRemedy(id="compute.cudnn_benchmark", page=PAGE, candidates=_candidates)
