"""optimizer.state_8bit: Adam's state is stored in 8 bits."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

_KINDS = ("Adam", "AdamW")

PAGE = """
Adam stores two moving averages for each parameter, which take 8 bytes in total. If the library bitsandbytes or torchao
is installed, the setting `optimizer.state_8bit` replaces `torch.optim.Adam` and `torch.optim.AdamW` with the optimizer
of that library, which stores both moving averages in 2 bytes. `tune` tries `optimizer.state_8bit` with `--goal memory`
on a CUDA device.

## Safety class

The safety class is semantic: the moving averages are rounded to 8 bits in every step, so the training algorithm
changes. Compare the loss with and without the change over a whole training run.

## What it sets

This remedy sets `optimizer.state_8bit = true`.

## How it is confirmed

Paceline records `optimizer.state_8bit` as applied when the optimizer of bitsandbytes or torchao is created. If neither
library is installed, a message names the packages to install. If the library does not support an argument of the
optimizer, the program keeps its own optimizer.

## In the source

Write `bitsandbytes.optim.AdamW8bit(...)` or `torchao.optim.AdamW8bit(...)` instead of `torch.optim.AdamW(...)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    made = context.facts.first.record.summary.get("optimizers") or ()
    adam = any(one.get("class") in _KINDS for one in made)
    if not context.on_cuda or not adam or context.setting("optimizer", "state_8bit"):
        return []
    return [
        Candidate(
            remedy="optimizer.state_8bit",
            recipe={"optimizer": {"state_8bit": True}},
            safety="semantic",
            predicted=None,
            why="in 8 bits, Adam's state needs a quarter of the memory",
            aims=("memory",),
        )
    ]


REMEDY = TunableRemedy(id="optimizer.state_8bit", page=PAGE, candidates=_candidates)
