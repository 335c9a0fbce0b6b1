"""ddp.comm_hook: gradients are compressed on their way between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.facts import gain_of_removing
from paceline.explain.model import Finding
from paceline.improve.child.compression import POWERSGD_FROM
from paceline.improve.measured import capability, communication, reduces_gradients
from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

_BF16_FROM = 8.0  # compute capability

PAGE = """
A communication hook of DistributedDataParallel sends gradients in half precision (`bf16` on a CUDA device that has it,
else `fp16`), or as matrices of rank 1 with what was left out added in the next step (`powersgd`, from step 10 on).
Proposed where ranks wait for communication.

## Safety class

Numeric: in half precision, sums of gradients are rounded. Semantic for `powersgd`: most of each gradient comes later.

## What it sets

`ddp.comm_hook = "bf16"` or `"fp16"`, and `"powersgd"`.

## How it is confirmed

The hook was registered before the first forward. Left alone where the program has a hook of its own. `bf16` and
`powersgd` need NCCL, and are refused without.

## In the source

`model.register_comm_hook(process_group, default_hooks.fp16_compress_hook)` after the model is wrapped;
`PowerSGDState(process_group, start_powerSGD_iter=10)` with `powerSGD_hook`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    slow = situation.finding("COMM001")
    if slow is None or not reduces_gradients(situation) or situation.setting("ddp", "comm_hook"):
        return []
    return [_half(situation, slow), *([_low_rank(situation, slow)] if situation.on_cuda else [])]


def _half(situation: Situation, slow: Finding) -> Candidate:
    return Candidate(
        remedy="ddp.comm_hook",
        recipe={"ddp": {"comm_hook": "bf16" if capability(situation) >= _BF16_FROM else "fp16"}},
        safety="numeric",
        predicted=situation.gain_of("ddp.compress"),
        why=slow.summary,
    )


def _low_rank(situation: Situation, slow: Finding) -> Candidate:
    return Candidate(
        remedy="ddp.comm_hook",
        recipe={"ddp": {"comm_hook": "powersgd"}},
        safety="semantic",
        predicted=gain_of_removing(communication(situation), 0.1, 0.95),
        why=slow.summary,
        warmup_steps=POWERSGD_FROM,
    )


REMEDY = Remedy(id="ddp.comm_hook", page=PAGE, candidates=_candidates)
