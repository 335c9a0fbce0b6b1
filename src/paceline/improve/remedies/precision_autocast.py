"""precision.autocast: models compute in bf16, the loss in single precision."""

from __future__ import annotations

from paceline.improve.measured import capability, operator_share
from paceline.improve.remedies import Remedy, at_most, switch
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
# In the names of operators.
_MATRIX_WORK = ("addmm", "::mm", "bmm", "conv", "attention", "linear", "rnn", "lstm", "gru")
_TIMES = 3.0  # as fast, at most: two products where there was one, of half the bytes


def _most(situation: Situation) -> float | None:
    """No more can be gained than matrix work takes of a step; not known of processors that do not multiply bf16."""
    share = operator_share(situation, *_MATRIX_WORK)
    if situation.on_cuda or share is None or not situation.cpu_flags & _MULTIPLY:
        return None
    return 1 / (1 - share * (1 - 1 / _TIMES))


REMEDY = Remedy(
    id="precision.autocast",
    page=PAGE,
    candidates=at_most(
        switch(
            "precision.autocast",
            "precision.autocast",
            "bf16",
            gain_of="precision.bf16",
            why="models compute in bf16, the loss in single precision",
            when=lambda situation: not situation.on_cuda or capability(situation) >= 8.0,
        ),
        _most,
    ),
)
