"""ddp.comm_hook: gradients are compressed before they are sent."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.analysis.run_analysis import gain_of_removing
from paceline.explain.model import Finding
from paceline.inprocess.settings.comm_hook import POWERSGD_FROM
from paceline.tune.candidates import Candidate, DiagnosisContext, capability, communication, reduces_gradients
from paceline.tune.remedies import TunableRemedy

_BF16_FROM = 8.0  # least compute capability for bf16

PAGE = """
A communication hook of DistributedDataParallel compresses gradients before ranks exchange them. The hooks `bf16` and
`fp16` send half the bytes. The hook `bf16` needs a CUDA device that supports bf16. From step 10 on, the hook `powersgd`
sends low-rank matrices instead of gradients, and adds the compression error of each step to the gradients of the next
step. If ranks wait for communication, `tune` proposes a communication hook.

## Safety class

The safety class of `bf16` and `fp16` is numeric, because gradients are rounded before they are added. The safety class
of `powersgd` is semantic, because most of each gradient is added only in later steps.

## What it sets

This remedy sets `ddp.comm_hook = "bf16"`, `"fp16"` or `"powersgd"`.

## How it is confirmed

Paceline records `ddp.comm_hook` as applied when it has registered the hook before the first forward pass. If the
program registers a communication hook itself, Paceline does not replace it. Paceline applies `bf16` and `powersgd` only
if the ranks communicate with NCCL.

## In the source

After the program has wrapped the model in DistributedDataParallel, call `model.register_comm_hook(process_group,
default_hooks.fp16_compress_hook)`. For PowerSGD, use `powerSGD_hook` with `PowerSGDState(process_group,
start_powerSGD_iter=10)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    slow = context.finding("COMM001")
    if slow is None or not reduces_gradients(context) or context.setting("ddp", "comm_hook"):
        return []
    return [_half(context, slow), *([_low_rank(context, slow)] if context.on_cuda else [])]


def _half(context: DiagnosisContext, slow: Finding) -> Candidate:
    return Candidate(
        remedy="ddp.comm_hook",
        recipe={"ddp": {"comm_hook": "bf16" if capability(context) >= _BF16_FROM else "fp16"}},
        safety="numeric",
        predicted=context.gain_of("ddp.comm_hook"),
        why=slow.summary,
    )


def _low_rank(context: DiagnosisContext, slow: Finding) -> Candidate:
    return Candidate(
        remedy="ddp.comm_hook",
        recipe={"ddp": {"comm_hook": "powersgd"}},
        safety="semantic",
        predicted=gain_of_removing(communication(context), 0.1, 0.95),
        why=slow.summary,
        warmup_steps=POWERSGD_FROM,
    )


REMEDY = TunableRemedy(id="ddp.comm_hook", page=PAGE, candidates=_candidates)
