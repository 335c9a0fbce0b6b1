"""loader.device_prefetch: the next batch is copied to the GPU during the current step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.improve.model import Candidate
from paceline.improve.remedies import Remedy
from paceline.improve.situation import Situation

PAGE = """
While the model computes on the current batch, the loader copies the next batch from pinned memory to the GPU on a
separate CUDA stream. The program's own call of `.to(device)` has nothing left to copy. With `loader.device_prefetch`,
GPU memory holds one more batch than without it. If copies to the GPU take a visible share of step time, `tune` proposes
`loader.device_prefetch`. A program that uses its batches on the CPU first fails with `loader.device_prefetch`, and
`tune` then reports the trial as failed.

## Safety class

The safety class is exact, because training gets the same batches in the same order. If the training process itself
draws random numbers for samples, the safety class is resampled, because the training process then draws the random
numbers for the next batch before the random numbers that the model uses.

## What it sets

This remedy sets `loader.device_prefetch = true` and `loader.pin_memory = true`.

## How it is confirmed

Paceline records `loader.device_prefetch` as applied when the loader returns a batch that was copied to the GPU ahead of
time. Without a CUDA device, the setting has no effect.

## In the source

Write an iterator around the loader that copies the next batch with `non_blocking=True` under `with
torch.cuda.stream(side):`. Before the program uses the batch, the iterator must call
`torch.cuda.current_stream().wait_stream(side)` and `tensor.record_stream(torch.cuda.current_stream())`.
"""


def _candidates(situation: Situation) -> Sequence[Candidate]:
    predicted, loader = situation.gain_of("loader.device_prefetch"), situation.loader
    if predicted is None or loader is None or situation.setting("loader", "device_prefetch"):
        return []
    return [
        Candidate(
            remedy="loader.device_prefetch",
            recipe={"loader": {"pin_memory": True, "device_prefetch": True}},
            safety="resampled" if loader.draws_random and not loader.workers else "exact",
            predicted=predicted,
            why=f"copies to the GPU take {situation.facts.shares['transfer']:.0%} of the time",
        )
    ]


REMEDY = Remedy(id="loader.device_prefetch", page=PAGE, candidates=_candidates)
