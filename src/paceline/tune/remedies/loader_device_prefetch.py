"""loader.device_prefetch: the next batch is copied to the GPU during the current step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

PAGE = """
Tensors of the next batch are copied from pinned memory to the GPU on a separate CUDA stream, while the model computes
on the current batch. The program's own `tensor.to(device)` or `tensor.cuda()` then returns the copy. GPU memory
contains one more batch. `tune` proposes this change if copies to the device take time.

The first two batches of each loader show which tensors of a batch the program moves, and to which device. Only these
are copied ahead. Batches stay in host memory: a program that uses a tensor on the host gets what it got before, lengths
of packed sequences stay on the host, and a loader whose batches are not moved is left alone. A copy is not used if the
tensor was changed, if its memory was given out (`numpy()`, `data`, `data_ptr()`), if the move also converts, or on
another stream.

## Safety class

The safety class is exact, because training gets the same batches in the same order. If the training process itself
draws random numbers for samples, the safety class is resampled, because the training process then draws the random
numbers for the next batch before the random numbers that the model uses.

## What it sets

This remedy sets `loader.device_prefetch = true` and `loader.pin_memory = true`.

## How it is confirmed

Paceline records this setting as applied when the program's own `tensor.to(device)` returns a copy that was made ahead
of time. Paceline does not apply this setting without a CUDA device, to pageable batches, to a program that moves a
batch only after it has asked for the next one, and to a `collate_fn` in the training process, which may use the memory
of a batch again.

## In the source

Write an iterator around the loader that copies the next batch with `non_blocking=True` under `with
torch.cuda.stream(side):`. Before the program uses the batch, the iterator must call
`torch.cuda.current_stream().wait_stream(side)` and `tensor.record_stream(torch.cuda.current_stream())`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    predicted, loader = context.gain_of("loader.device_prefetch"), context.loader
    if predicted is None or loader is None or context.setting("loader", "device_prefetch"):
        return []
    return [
        Candidate(
            remedy="loader.device_prefetch",
            recipe={"loader": {"pin_memory": True, "device_prefetch": True}},
            safety="resampled" if loader.draws_random and not loader.workers else "exact",
            predicted=predicted,
            why=f"copies to the GPU take {context.facts.shares['transfer']:.0%} of the time",
        )
    ]


REMEDY = TunableRemedy(id="loader.device_prefetch", page=PAGE, candidates=_candidates)
