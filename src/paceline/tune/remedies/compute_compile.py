"""compute.compile: torch.compile fuses operators."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
`torch.compile` compiles the model in place. Compilation fuses operators and removes the Python code between them. The
keys of the state dict stay the same.

Compiling makes the first steps slow, and torch compiles again for each new input shape. `tune` measures how many
seconds of warm-up the compilation causes. If `tune` keeps the compiled model and the GPU still waits for the host,
`tune` tries two more modes of `torch.compile`. The mode `reduce-overhead` replays the step as a CUDA graph, and the
mode `max-autotune` also measures which kernels are fastest. If input shapes change, torch records no CUDA graph. After
torch has compiled something new in eight steps, further new input shapes run without compilation.

## Safety class

The safety class is numeric, because fused kernels round differently.

## What it sets

This remedy sets `compute.compile = "default"` first, and then `"reduce-overhead"` or `"max-autotune"`.

## How it is confirmed

Paceline records `compute.compile` as applied when a model is compiled before its first forward pass in training mode,
and torch compiles at least one graph of the model. After torch has compiled something new in eight steps, Paceline
reports that the setting had no effect.

## In the source

Call `model.compile()` or `model.compile(mode="reduce-overhead")` after the model is on its device. If the model is an
instance of a torch class such as `nn.Sequential`, `model.compile()` has no effect. For a model of a torch class, write
`model = torch.compile(model)`. The keys of the state dict of such a compiled model start with `_orig_mod.`.
"""


_COMPILES_S = 45.0  # seconds to compile a small model on two cores


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    return [
        Candidate(
            remedy="compute.compile",
            recipe={"compute": {"compile": mode}},
            safety="numeric",
            predicted=context.gain_of("compute.compile"),
            why=why,
            startup_s=_COMPILES_S,
        )
        for mode, why in _modes(context)
    ]


def _modes(context: DiagnosisContext) -> Sequence[tuple[str, str]]:
    now, waits = context.setting("compute", "compile"), context.finding("COMP002")
    if now is None:
        return [("default", "torch.compile fuses operators and removes Python code between them")]
    if now == "default" and context.on_cuda and waits is not None:
        return [("reduce-overhead", waits.summary), ("max-autotune", waits.summary)]
    return []


REMEDY = TunableRemedy(id="compute.compile", page=PAGE, candidates=_candidates)
