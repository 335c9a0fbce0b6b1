"""compute.compile: torch.compile fuses operators."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
`torch.compile` compiles the model in place. It fuses operators and removes Python code between them. The keys of the
state dict stay the same.

Compiling makes the first steps slow, and each new input shape is compiled again. `tune` measures how long this warm-up
takes. If the compiled model is kept and a CUDA device still waits for the host, `tune` tries two more modes:
`reduce-overhead` replays the step as a CUDA graph, and `max-autotune` also measures which kernels are fastest. If input
shapes change, no CUDA graph is recorded. After eight steps in which something new was compiled, further new shapes run
without compilation.

## Safety class

Numeric: fused kernels round differently.

## What it sets

`compute.compile = "default"` first, then `"reduce-overhead"` or `"max-autotune"`.

## How it is confirmed

Confirmed when a model is compiled before its first forward pass in training, and torch compiles at least one graph of
it. After eight steps in which something new was compiled, Paceline reports that the setting had no effect.

## In the source

Call `model.compile()` or `model.compile(mode="reduce-overhead")` after the model is on its device. This call has no
effect if the model is an instance of a torch class such as `nn.Sequential`. In that case, write `model =
torch.compile(model)`; the keys of the state dict then start with `_orig_mod.`.
"""


_COMPILES_S = 45.0  # seconds to compile a small model on two cores


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
        return [("default", "torch.compile fuses operators and removes Python code between them")]
    if now == "default" and situation.on_cuda and waits is not None:
        return [("reduce-overhead", waits.summary), ("max-autotune", waits.summary)]
    return []


REMEDY = Remedy(id="compute.compile", page=PAGE, candidates=_candidates)
