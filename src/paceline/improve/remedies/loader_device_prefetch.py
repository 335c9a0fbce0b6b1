"""loader.device_prefetch: the next batch is copied to the device while this one is computed with."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
The loader hands out batches that are on the CUDA device already: each was copied from pinned memory on a stream of its
own while the one before was computed with. The program's own `.to(device)` then has nothing to do. It takes the memory
of one more batch. Proposed where copies to the device take time; a program that works on its batches on the CPU cannot
go on with them on the device, and its trial fails.

## Safety class

Exact: the same batches in the same order. Semantic where the training process itself draws random numbers for samples:
with a batch ahead, they are drawn before those of the model.

## What it sets

`loader.device_prefetch = true` and `loader.pin_memory = true`.

## How it is confirmed

A batch was handed out whose tensors had been copied ahead. Refused without a CUDA device.

## In the source

A loop over a small iterator of your own: with `torch.cuda.stream(side)` copy the next batch with `non_blocking=True`,
and before it is used `torch.cuda.current_stream().wait_stream(side)` and `tensor.record_stream(...)`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    predicted, loader = situation.gain_of("data.prefetch_device"), situation.loader
    if predicted is None or loader is None or situation.setting("loader", "device_prefetch"):
        return []
    return [
        Candidate(
            remedy="loader.device_prefetch",
            recipe={"loader": {"pin_memory": True, "device_prefetch": True}},
            safety="semantic" if loader.draws_random and not loader.workers else "exact",
            predicted=predicted,
            why=f"copies to the device take {situation.facts.shares['transfer']:.0%} of the time",
        )
    ]


REMEDY = Remedy(id="loader.device_prefetch", page=PAGE, candidates=_candidates)
