"""ddp.comm_hook: gradients are compressed before they are sent."""

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
A communication hook of DistributedDataParallel compresses gradients before ranks exchange them. `bf16` or `fp16` sends
half the bytes; `bf16` needs a CUDA device that supports it. `powersgd` sends low-rank matrices from step 10 on, and
adds the compression error of each step to the gradients of the next step. `tune` proposes this change if ranks wait for
communication.

## Safety class

Numeric for `bf16` and `fp16`: gradients are rounded before they are added. Semantic for `powersgd`: most of each
gradient arrives in later steps.

## What it sets

`ddp.comm_hook = "bf16"`, `"fp16"` or `"powersgd"`.

## How it is confirmed

Confirmed when the hook is registered before the first forward pass. If the program registers a hook itself, that hook
stays. `bf16` and `powersgd` are not applied without NCCL.

## In the source

Call `model.register_comm_hook(process_group, default_hooks.fp16_compress_hook)` after the model is wrapped. For
PowerSGD, use `powerSGD_hook` with `PowerSGDState(process_group, start_powerSGD_iter=10)`.
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
        predicted=situation.gain_of("ddp.comm_hook"),
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
