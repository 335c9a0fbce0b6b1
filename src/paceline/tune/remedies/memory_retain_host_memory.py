"""memory.retain_host_memory: the C library keeps freed memory for the next step."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

_FREE = 1.5  # free memory that is needed, as a multiple of the memory of the program

PAGE = """
The C library gives large blocks of memory back to the operating system when the program frees them, and the next step
takes them anew. With this remedy, the C library keeps freed memory. `tune` proposes `memory.retain_host_memory` if
page faults take at least a tenth of the time (HOST005), and if 1.5 times as much memory is free as the program uses.

The process needs more memory, because it also keeps freed blocks that have the wrong size for the next tensor. Two
programs were measured: one needed 20% more memory, the other 2.3 times as much. After some steps, the memory of both
stopped growing.

## Safety class

The safety class is exact, because training computes the same numbers at other memory addresses.

## What it sets

This remedy sets `allocator.retain_host_memory = true`. Paceline adds two variables to the environment before the
program starts: `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_`. If the environment has settings of malloc
already, Paceline keeps them and adds none.

## How it is confirmed

When the program has imported torch, Paceline checks three things: the process has the two variables, its C library is
glibc, and no other allocator (jemalloc, tcmalloc, mimalloc) is loaded.

## In the source

Set the variables in the environment, not in the source:

```sh
MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=1099511627776 python train.py
```
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    found = context.finding("HOST005")
    host = context.facts.host
    if found is None or context.setting("allocator", "retain_host_memory"):
        return []
    if host.available_bytes is not None and host.available_bytes < _FREE * (host.own_rss_bytes or 0.0):
        return []
    return [
        Candidate(
            remedy="memory.retain_host_memory",
            recipe={"allocator": {"retain_host_memory": True}},
            safety="exact",
            predicted=found.gain,
            why=found.summary,
        )
    ]


REMEDY = TunableRemedy(id="memory.retain_host_memory", page=PAGE, candidates=_candidates)
