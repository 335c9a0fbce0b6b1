"""compute.sdpa_backend: another implementation of attention is asked first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.facts import gain_of_removing
from paceline.explain.mfu import number_format
from paceline.improve.measured import operator_share
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_LEAST_SHARE = 0.05  # of step time in attention
_IN_HALF = ("flash", "cudnn", "efficient")
_IN_SINGLE = ("efficient",)

PAGE = """
`scaled_dot_product_attention` has several back ends on a CUDA device. One of them is asked first; what it cannot do
(a mask, a size, a number format) the others do as before. Proposed where a twentieth of the time goes into attention:
the back ends that can compute in the program's format, but for the one that runs already.

## Safety class

Numeric: other algorithms round otherwise.

## What it sets

`compute.sdpa_backend = "flash"`, `"efficient"` or `"cudnn"`; `"math"` can be set, and is not tried.

## How it is confirmed

At the first optimizer step training is on a CUDA device, and this back end is the first that torch asks.

## In the source

`with torch.nn.attention.sdpa_kernel([SDPBackend.CUDNN_ATTENTION, ...], set_priority=True):` around training, the wanted
one first, or a `with` around the call that computes attention.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    share = operator_share(situation, "attention") if situation.on_cuda else None
    if share is None or share < _LEAST_SHARE or situation.setting("compute", "sdpa_backend"):
        return []
    first = situation.facts.first
    half = number_format(first.record, first.window) in ("bf16", "fp16")
    running = _running(situation)
    return [
        Candidate(
            remedy="compute.sdpa_backend",
            recipe={"compute": {"sdpa_backend": backend}},
            safety="numeric",
            predicted=gain_of_removing(share, 0.0, 0.5),
            why=f"attention takes {share:.0%} of the time",
        )
        for backend in (_IN_HALF if half else _IN_SINGLE)
        if backend not in running
    ]


def _running(situation: Situation) -> set[str]:
    """Return the back ends that run now."""
    window = situation.facts.first.window
    names = " ".join(o.name for o in window.operators) if window is not None else ""
    return {backend for backend in _IN_HALF if f"_{backend}_attention" in names}


REMEDY = Remedy(id="compute.sdpa_backend", page=PAGE, candidates=_candidates)
