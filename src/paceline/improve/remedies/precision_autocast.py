"""precision.autocast: models compute in bf16, the loss in single precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.explain.model import Gain
from paceline.improve.measured import capability, operator_share
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy, switch
from paceline.improve.situation import Situation

PAGE = """
Matrix work in bfloat16 under autocast: half the bytes, and on hardware that has it several times the speed. The loss is
computed outside of it, in single precision; parameters and optimizer stay as they are. Of a processor that multiplies
bfloat16 itself (AVX-512 BF16, AMX, Arm's BF16) at most three times the speed is expected, in the part of a step that is
matrix work; of one that does not, nothing is known before the trial.

## Safety class

Numeric: the same algorithm, other rounding.

## What it sets

`precision.autocast = "bf16"`.

## How it is confirmed

A model's forward ran in bf16. Not in force where the program uses autocast itself.

## In the source

`with torch.autocast("cuda", dtype=torch.bfloat16):` around the forward, `"cpu"` on a CPU; the loss outside of it, of
`output.float()`.
"""

_MULTIPLY = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # instruction sets, as Linux names them
_MATRIX_WORK = ("addmm", "::mm", "bmm", "conv", "attention", "linear")  # in the names of operators
_TIMES = 3.0  # as fast, at most: two products where there was one, of half the bytes

_SWITCHED = switch(
    "precision.autocast",
    "precision.autocast",
    "bf16",
    gain_of="precision.bf16",
    why="models compute in bf16, the loss in single precision",
    when=lambda situation: not situation.on_cuda or capability(situation) >= 8.0,
)


def _candidates(situation: Situation) -> Sequence[Candidate]:
    """Without a finding that says more, no more can be gained than matrix work takes, where the processor has it."""
    share = operator_share(situation, *_MATRIX_WORK)
    if situation.on_cuda or share is None or not situation.cpu_flags & _MULTIPLY:
        return _SWITCHED(situation)
    bound = Gain(low=1.0, high=1 / (1 - share * (1 - 1 / _TIMES)))
    return [one if one.predicted else replace(one, predicted=bound) for one in _SWITCHED(situation)]


REMEDY = Remedy(id="precision.autocast", page=PAGE, candidates=_candidates)
