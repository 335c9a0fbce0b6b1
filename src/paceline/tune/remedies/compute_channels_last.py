"""compute.channels_last: images and convolution weights are stored channels-last."""

from __future__ import annotations

from paceline.tune.candidates import DiagnosisContext
from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
Images and the weights of convolutions are stored in the channels-last memory format, in which convolution kernels are
faster. If the profiled step contains no convolution, `tune` does not propose this change.

## Safety class

The safety class is numeric, because training uses other convolution kernels, which round differently.

## What it sets

This remedy sets `compute.channels_last = true`.

## How it is confirmed

Paceline records `compute.channels_last` as applied when it has converted a model with four-dimensional weights to
channels-last before the first forward pass.

## In the source

Call `.to(memory_format=torch.channels_last)` on the model and on its input.
"""


def _convolves(context: DiagnosisContext) -> bool:
    """Return whether a step has convolutions; True if no step was profiled."""
    window = context.facts.first.window
    return window is None or any("conv" in operator.name for operator in window.operators)


REMEDY = TunableRemedy(
    id="compute.channels_last",
    page=PAGE,
    candidates=switch(
        "compute.channels_last",
        "compute.channels_last",
        True,
        why="convolution kernels are faster with the channels-last format",
        when=_convolves,
    ),
)
