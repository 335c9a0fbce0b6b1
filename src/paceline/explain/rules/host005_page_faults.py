"""HOST005: each step takes new memory from the operating system, because the last step gave its memory back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.core import units
from paceline.core.statistics import Interval
from paceline.explain.analysis.gains import saving
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_COMPUTE = ("forward", "backward", "optimizer")
_PAGE_BYTES = 4096
_WARM = 2  # first steps, which have more page faults than later ones
_LEAST_SHARE = 0.1  # of step time, in the operating system
_LEAST_BYTES = 16e6  # of new memory in a step
_MOST_S = 4e-6  # most CPU time for a page fault; if it is more, the operating system does other work
_LEAST_TICKS = 3
_SAVED = (0.7, 1.5)  # saved by kept memory, in parts of the time in the operating system; the range of seven programs
_MOST_SAVED = 0.9  # of the time of these phases

PAGE = """
## What it means

The C library gives large blocks of memory back to the operating system as soon as the program frees them. On a CPU,
torch gets the memory of its tensors from the C library. So each step takes the memory of its large tensors anew. When
the program first writes to a page of new memory, the operating system has to find a free page and fill it with zeros
(a page fault).

## How it is detected

The operating system counts how much CPU time the training process spends in the operating system, and how many page
faults it has. Paceline reads both after the first steps, and reports `page-faults` for training on a CPU under three
conditions:

- The forward pass, the backward pass and the optimizer spend at least 10% of step time in the operating system.
- A step takes at least 16 MB of new memory.
- The time in the operating system is at most 4 µs for each page fault. If it is more, the process also spends time on
  something else, such as reading files.

The expected gain is the speed-up if a step is shorter by 0.7 to 1.5 times the time that the forward pass, the
backward pass and the optimizer spend in the operating system. The step can become shorter by more than this time,
because new pages also displace the data of the program from the caches of the processor. With seven programs, the step
was shorter by 0.7 to 1.5 times this time. With several ranks, the lower end is no gain, because exchanges between ranks
also take time in the operating system.

## What helps

- `memory.retain_host_memory`: let the C library keep freed memory for the next step. The process then holds more
  memory.
"""


@dataclass(frozen=True, kw_only=True)
class _Faults:
    """The page faults of a training process after its first steps."""

    system_share: float  # share of the CPU time of the process that is spent in the operating system
    bytes_per_step: float
    each_s: float  # CPU time in the operating system for each page fault
    readings: int


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding HOST005, or None if it does not apply."""
    faults = _faults(analysis.first)
    if not analysis.on_cpu or faults is None:
        return None
    compute = sum(analysis.shares[name] for name in _COMPUTE)
    share = faults.system_share * compute
    if share < _LEAST_SHARE or faults.bytes_per_step < _LEAST_BYTES or faults.each_s > _MOST_S:
        return None
    low, high = (min(_MOST_SAVED * compute, part * share) for part in _SAVED)
    least = 0.0 if analysis.first.record.meta.get("distributed") else low
    gain = saving(Interval(value=share, low=least, high=high, count=faults.readings))
    return Finding(
        code="HOST005",
        name="page-faults",
        severity="warning",
        confidence="medium",
        time_share=share,
        gain=gain,
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            Evidence(
                text=f"{units.percent(faults.system_share)} of the CPU time of the process is spent in the operating "
                f"system ({units.count(faults.readings, 'reading')})",
                value=faults.system_share,
                unit="share of CPU time",
            ),
            Evidence(
                text=f"each step takes {units.size(faults.bytes_per_step)} of memory from the operating system "
                f"({units.seconds(faults.each_s)} of CPU time for each page)",
                value=faults.bytes_per_step,
                unit="bytes per step",
            ),
        ],
        remedies=[
            Remedy(
                id="memory.retain_host_memory",
                safety="exact",
                change="set MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ in the environment, so that the C "
                "library keeps freed memory",
                gain=gain,
            )
        ],
        summary=f"{units.percent(share)} of step time is spent in the operating system, which provides "
        f"{units.size(faults.bytes_per_step)} of new memory in each step",
    )


def _faults(rank: RankAnalysis) -> _Faults | None:
    """Return the page faults of a rank, or None if they were not measured, or if there were none."""
    ticks = rank.record.ticks
    ticks = ticks[(ticks["step"] > _WARM) & np.isfinite(ticks["minor_faults"])]
    if len(ticks) < _LEAST_TICKS:
        return None
    first, last = ticks[0], ticks[-1]
    faults, steps = (float(last[name]) - float(first[name]) for name in ("minor_faults", "step"))
    cpu_s, system_s = (float(last[name]) - float(first[name]) for name in ("cpu_s", "system_s"))
    if faults <= 0 or steps <= 0 or cpu_s <= 0:
        return None
    return _Faults(
        system_share=min(1.0, system_s / cpu_s),
        bytes_per_step=faults * _PAGE_BYTES / steps,
        each_s=system_s / faults,
        readings=len(ticks),
    )


RULE = Rule(code="HOST005", name="page-faults", page=PAGE, check=check)
