"""optimizer.state_8bit: Adam keeps its averages in 8 bit."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_KINDS = ("Adam", "AdamW")

PAGE = """
Adam keeps two averages for each parameter, 8 bytes in all. Where bitsandbytes or torchao is installed, calls of
`torch.optim.Adam` and `AdamW` make the library's optimizer, which keeps them in 8 bit, 2 bytes in all. Tried with
`--goal memory`, on a CUDA device.

## Safety class

Semantic: the averages are rounded in every step, which is another optimizer. Compare the loss over a whole training.

## What it sets

`optimizer.state_8bit = true`.

## How it is confirmed

The library's optimizer was made. Without a library it says what to install; with arguments that the library does not
know the program's own optimizer stays.

## In the source

`bitsandbytes.optim.AdamW8bit(...)` or `torchao.optim.AdamW8bit(...)` instead of `torch.optim.AdamW(...)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    made = situation.facts.first.record.summary.get("optimizers") or ()
    adam = any(one.get("class") in _KINDS for one in made)
    if not situation.on_cuda or not adam or situation.setting("optimizer", "state_8bit"):
        return []
    return [
        Candidate(
            remedy="optimizer.state_8bit",
            recipe={"optimizer": {"state_8bit": True}},
            safety="semantic",
            predicted=None,
            why="the averages that Adam keeps take a quarter of the memory",
            aims=("memory",),
        )
    ]


REMEDY = Remedy(id="optimizer.state_8bit", page=PAGE, candidates=_candidates)
