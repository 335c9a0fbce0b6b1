"""compute.sdpa_backend: another kernel computes attention."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.analysis.mfu import computes_in_16_bits
from paceline.explain.analysis.run_analysis import gain_of_removing
from paceline.tune.candidates import Candidate, DiagnosisContext, operator_share
from paceline.tune.remedies import TunableRemedy

_LEAST_SHARE = 0.05  # least share of step time in attention
_IN_HALF = ("flash", "cudnn", "efficient")
_IN_SINGLE = ("efficient",)

PAGE = """
`scaled_dot_product_attention` can use several kernels ("backends") on a CUDA device. The setting `compute.sdpa_backend`
gives one of the attention kernels the highest priority. If that kernel does not support an input (a mask, a size, a
data type), torch uses the kernel with the next priority. If attention takes at least 5% of the time, `tune` tries each
kernel that supports the program's data type and is not in use yet.

## Safety class

The safety class is numeric, because another attention kernel rounds differently.

## What it sets

This remedy sets `compute.sdpa_backend = "flash"`, `"efficient"` or `"cudnn"`. A recipe can also set `"math"`, which
`tune` does not try.

## How it is confirmed

Paceline checks `compute.sdpa_backend` at the first optimizer step. Paceline records the setting as applied if training
runs on a CUDA device and this kernel has the highest priority in torch's list.

## In the source

Put `with torch.nn.attention.sdpa_kernel([SDPBackend.CUDNN_ATTENTION, ...], set_priority=True):` around the training
loop or around the call that computes attention. List the preferred kernel first.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    share = operator_share(context, "attention") if context.on_cuda else None
    if share is None or share < _LEAST_SHARE or context.setting("compute", "sdpa_backend"):
        return []
    first = context.facts.first
    half = computes_in_16_bits(first.record)
    running = _running(context)
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


def _running(context: DiagnosisContext) -> set[str]:
    """Return the names of the attention kernels in the profile."""
    window = context.facts.first.window
    names = " ".join(o.name for o in window.operators) if window is not None else ""
    return {backend for backend in _IN_HALF if f"_{backend}_attention" in names}


REMEDY = TunableRemedy(id="compute.sdpa_backend", page=PAGE, candidates=_candidates)
