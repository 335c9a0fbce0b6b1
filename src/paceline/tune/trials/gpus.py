"""The GPUs of a trial during a block of steps: clocks, temperature, throttling, and free memory.

The clock of a GPU changes with heat, power and the load of other programs. A pair of blocks under different clocks says
little about a change. However, a change can itself cause lower clocks, and then the lower clocks are part of its
result. So pairs are left out symmetrically: as many pairs in which the candidate had a lower clock as pairs in which
it had a higher clock, beginning with the largest differences. If clocks differ on one side only, no pair is left out.
The rule uses clocks only, never times.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Protocol

from paceline.monitor.gauges.nvidia import throttle_names
from paceline.monitor.gauges.nvml import Nvml, NvmlFault, NvmlLike

_EVERY_S = 0.1  # seconds between two readings
_STEADY = 0.03  # log of the clock ratio: differences from the median below this do not count
_FEWEST = 4  # with fewer pairs with known clocks than this, no pair is left out
_ROOM = 1.25  # a further process needs this many times the GPU memory that one process uses
_CONTEXT_BYTES = 512 << 20  # and this much more, about the most that a CUDA context and its libraries take
_SM_CLOCK = 1  # NVML_CLOCK_SM in nvmlClockType_t


@dataclass(frozen=True, kw_only=True)
class GpuMemory:
    """Free and total memory of one GPU at the end of a block; the memory of all processes on the GPU counts."""

    uuid: str
    free_bytes: float
    total_bytes: float


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """State of the GPUs of a program during a block."""

    sm_clock_mhz: float | None  # median over the block, mean over GPUs; None if no clock was read
    temperature_c: float | None  # temperature of the hottest GPU
    throttled: tuple[str, ...] = ()  # reasons for lower clocks that were seen, except an idle GPU


@dataclass(frozen=True, kw_only=True)
class GpuRange:
    """Range of the states of the GPUs of a program over several blocks."""

    sm_clock_low_mhz: float | None
    sm_clock_high_mhz: float | None
    temperature_c: float | None  # highest temperature
    throttled: tuple[str, ...]


class GpuStateReader(Protocol):
    """Reads the state of GPUs."""

    def read(self, uuid: str) -> Mapping[str, Any] | None:
        """Return ``sm_clock_mhz``, ``temperature_c`` and ``throttle_reasons`` of a GPU; None if it cannot be read."""


class NvmlReader:
    """Reads the state of GPUs from the NVIDIA driver (NVML). It creates no CUDA context."""

    def __init__(self, nvml: NvmlLike) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}

    def read(self, uuid: str) -> Mapping[str, Any] | None:
        """Return ``sm_clock_mhz``, ``temperature_c`` and ``throttle_reasons`` of a GPU; None if it cannot be read."""
        ask = self._nvml.call
        try:
            if uuid not in self._handles:
                name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
                self._handles[uuid] = ask("nvmlDeviceGetHandleByUUID", name)
            handle = self._handles[uuid]
            return {
                "sm_clock_mhz": float(ask("nvmlDeviceGetClockInfo", handle, _SM_CLOCK)),
                "temperature_c": float(ask("nvmlDeviceGetTemperature", handle, 0)),
                "throttle_reasons": throttle_names(int(ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle))),
            }
        except (NvmlFault, TypeError, ValueError):
            return None


def driver() -> GpuStateReader | None:
    """Return a reader for the NVIDIA driver of this machine, or None if there is no driver."""
    try:
        return NvmlReader(Nvml())
    except (NvmlFault, ImportError):
        return None


class GpuSampler:
    """Reads the GPUs of one program at intervals while its blocks run."""

    def __init__(self, find_reader: Callable[[], GpuStateReader | None] | None = None) -> None:
        self._find_reader = find_reader
        self._reader: GpuStateReader | None = None
        self._asked = False
        self._next_s = 0.0
        self._readings: dict[str, list[Mapping[str, Any]]] = {}
        self.memory: tuple[GpuMemory, ...] = ()

    def heard(self, said: Sequence[Mapping[str, Any]]) -> None:
        """Store the GPUs of the program and their free memory.

        Args:
            said: The message of each rank at the end of a block. Its key ``gpus`` is a list of ``[uuid, free, total]``
                in bytes.
        """
        found = {one[0]: one for each in said for one in each.get("gpus") or ()}
        self.memory = tuple(GpuMemory(uuid=u, free_bytes=free, total_bytes=all_) for u, free, all_ in found.values())

    def begin(self) -> None:
        """Begin a block: forget the readings of the last block."""
        self._readings = {}
        self._next_s = time.monotonic() + _EVERY_S / 2

    def sample(self) -> None:
        """Read the GPUs if the interval since the last reading is over."""
        if self.memory and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _EVERY_S
            self._read()

    def _read(self) -> None:
        if not self._asked:
            self._asked, self._reader = True, (self._find_reader or driver)()
        if self._reader is None:
            return
        for gpu in self.memory:
            reading = self._reader.read(gpu.uuid)
            if reading is not None:
                self._readings.setdefault(gpu.uuid, []).append(reading)

    def end(self) -> GpuState | None:
        """Return the state of the GPUs during the block, or None if the program uses no GPU."""
        if not self.memory:
            return None
        self._read()
        return summarize(list(self._readings.values()))


def summarize(gpus: Sequence[Sequence[Mapping[str, Any]]]) -> GpuState:
    """Return the state of GPUs, from their readings. Clocks of idle GPUs are left out, because they are low."""
    busy = [[r for r in readings if "gpu_idle" not in r["throttle_reasons"]] for readings in gpus]
    clocks = [median([r["sm_clock_mhz"] for r in readings]) for readings in busy if readings]
    every = [reading for readings in gpus for reading in readings]
    reasons = {reason for reading in every for reason in reading["throttle_reasons"]} - {"gpu_idle"}
    return GpuState(
        sm_clock_mhz=fmean(clocks) if clocks else None,
        temperature_c=max((reading["temperature_c"] for reading in every), default=None),
        throttled=tuple(sorted(reasons)),
    )


def range_over_blocks(states: Sequence[GpuState | None]) -> GpuRange | None:
    """Return the range of the states over several blocks, or None if the program uses no GPU."""
    known = [state for state in states if state is not None]
    if not known:
        return None
    clocks = [state.sm_clock_mhz for state in known if state.sm_clock_mhz is not None]
    return GpuRange(
        sm_clock_low_mhz=min(clocks, default=None),
        sm_clock_high_mhz=max(clocks, default=None),
        temperature_c=max((s.temperature_c for s in known if s.temperature_c is not None), default=None),
        throttled=tuple(sorted({reason for state in known for reason in state.throttled})),
    )


def pairs_with_changed_clocks(pairs: Sequence[tuple[GpuState | None, GpuState | None]]) -> frozenset[int]:
    """Return the indices of the pairs to leave out because their two blocks ran with different GPU clocks.

    Args:
        pairs: For each pair, the states during the block of the baseline and during that of the candidate.
    """
    ratios = {i: ratio for i, pair in enumerate(pairs) if (ratio := _clock_ratio(*pair)) is not None}
    if len(ratios) < _FEWEST:
        return frozenset()
    centre = median(ratios.values())
    lower = sorted((ratio - centre, i) for i, ratio in ratios.items() if ratio - centre < -_STEADY)
    higher = sorted(((centre - ratio, i) for i, ratio in ratios.items() if ratio - centre > _STEADY))
    balanced = min(len(lower), len(higher))
    return frozenset(i for side in (lower, higher) for _, i in side[:balanced])


def _clock_ratio(baseline: GpuState | None, candidate: GpuState | None) -> float | None:
    """Return the log of the candidate's clock divided by the baseline's clock, or None if one is unknown."""
    if baseline is None or candidate is None or not baseline.sm_clock_mhz or not candidate.sm_clock_mhz:
        return None
    return math.log(candidate.sm_clock_mhz / baseline.sm_clock_mhz)


def processes_that_fit(memory: Sequence[GpuMemory]) -> int:
    """Return how many processes of a program fit on its GPUs at the same time.

    All memory in use counts as memory of one process, even if other programs share the GPU.

    Args:
        memory: Memory of the GPUs after one process has run some steps. Without GPUs, the result is a very large
            number.
    """
    counts = [
        1 + int(gpu.free_bytes // (_ROOM * (gpu.total_bytes - gpu.free_bytes) + _CONTEXT_BYTES)) for gpu in memory
    ]
    return min(counts, default=1 << 30)
