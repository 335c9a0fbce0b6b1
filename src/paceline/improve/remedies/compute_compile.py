"""compute.compile: operators are fused and issued together."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
`torch.compile` of the model, in place: the keys of its state stay the same. The first steps take long, and each new
shape takes long again; warm-up is measured, not assumed. Once it is kept, and a CUDA device still waits for the host to
issue its work, two more modes are tried: `reduce-overhead` replays a step as one CUDA graph, `max-autotune` also
measures which kernels are fastest. Shapes that are ever others have an end: in shapes that vary no graph is recorded,
and after eight steps in which something new was compiled, what is new runs as it is written.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`compute.compile = "default"`, then `"reduce-overhead"` and `"max-autotune"`.

## How it is confirmed

A model was compiled before its first forward in training, and torch found something in it to compile. No more in force
when eight steps compiled something new.

## In the source

`model.compile()` after the model is on its device, or `model.compile(mode="reduce-overhead")`. Where the model is a
class of torch's own, such as `Sequential`, that compiles nothing: `model = torch.compile(model)`, whose state has other
keys.
"""


_COMPILES_S = 45.0  # a small model, on two cores


def _candidates(situation: Situation) -> Sequence[Candidate]:
    return [
        Candidate(
            remedy="compute.compile",
            recipe={"compute": {"compile": mode}},
            safety="numeric",
            predicted=situation.gain_of("compute.compile"),
            why=why,
            begins_s=_COMPILES_S,
        )
        for mode, why in _modes(situation)
    ]


def _modes(situation: Situation) -> Sequence[tuple[str, str]]:
    now, waits = situation.setting("compute", "compile"), situation.finding("COMP002")
    if now is None:
        return [("default", "operators are fused and issued together")]
    if now == "default" and situation.on_cuda and waits is not None:
        return [("reduce-overhead", waits.summary), ("max-autotune", waits.summary)]
    return []


REMEDY = Remedy(id="compute.compile", page=PAGE, candidates=_candidates)
