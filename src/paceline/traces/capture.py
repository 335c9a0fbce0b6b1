"""A profiler capture as columns: the events of one GPU or rank, their launches, marked steps, and collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.traces.intervals import EMPTY, Ns, Union


@dataclass(frozen=True, kw_only=True)
class CollectiveCall:
    """One collective as recorded on one rank."""

    kind: str  # "all_reduce"
    group: str  # name of the process group; "" if unknown
    start_ns: int
    end_ns: int
    bytes: int | None = None  # the larger of input and output bytes of one rank
    size: int | None = None  # ranks of the group
    members: str = ""  # members of the group as the capture gives them; "" if unknown
    number: int | None = None  # sequence number within the group; None: unknown
    between_two: bool = False  # a point-to-point message, not a collective of the group


COMPUTE, COMMUNICATION, COPY = 0, 1, 2  # classes of GPU events; copies are copies and sets of memory
CLASSES = ("compute", "communication", "copy")


@dataclass(frozen=True, kw_only=True)
class GpuEvents:
    """Kernels, copies and memory sets as columns, in the order of the capture."""

    start_ns: Ns
    end_ns: Ns
    class_: NDArray[np.uint8]
    name: NDArray[np.int32]  # place in `names`
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]  # id that the event shares with its launch; -1: none
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, chosen: NDArray[np.bool_]) -> GpuEvents:
        """Return the events selected by a mask."""
        return self.at(np.flatnonzero(chosen))

    def at(self, chosen: NDArray[np.intp]) -> GpuEvents:
        """Return the events at some indices, in their order."""
        return GpuEvents(
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
            class_=self.class_[chosen],
            name=self.name[chosen],
            stream=self.stream[chosen],
            correlation=self.correlation[chosen],
            names=self.names,
        )


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Calls on the host that launched GPU work. A launch and its GPU event have the same correlation id."""

    start_ns: Ns
    end_ns: Ns
    correlation: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class HostActivity:
    """When the training process on the host fetched batches or waited for the GPU, if the capture shows it."""

    loader: Union = EMPTY  # fetching batches
    loader_is_serial: bool | None = None  # whether the loader has no workers; None: no loader is seen
    synchronising: Union = EMPTY  # in calls that wait for the GPU


@dataclass(frozen=True, kw_only=True)
class MarkedStep:
    """One marked training step on the host."""

    name: str  # "ProfilerStep#12"
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The recorded activity of one rank, or of one GPU of an Nsight export."""

    source: str  # the file, as it was given
    rank: int | None  # None: unknown
    world: int | None
    gpu: str | None  # the device's name
    device: int | None  # number of the device, if the file has several
    events: GpuEvents
    launches: Launches
    steps: Sequence[MarkedStep]
    host: HostActivity
    calls: Sequence[CollectiveCall] = ()  # collectives, on the GPU and on the host
    problems: Sequence[str] = ()  # messages about data that could not be read
    captured_ns: tuple[int, int] | None = None  # times of the first and last event, host events included; None: unknown
    host_name: str | None = None  # name of the machine; None: unknown
    devices: NDArray[np.int64] | None = None  # GPU number of each event, -1: unknown; None: the capture has one GPU
    device_names: Mapping[int, str | None] = field(default_factory=dict)


NO_LAUNCH_NS = int(np.iinfo(np.int64).min)  # no launch in the capture


def launched_at(correlation: NDArray[np.int64], launches: Launches) -> Ns:
    """Return the start of the first launch with each correlation id in nanoseconds, or `NO_LAUNCH_NS`."""
    if not len(launches.start_ns) or not len(correlation):
        return np.full(len(correlation), NO_LAUNCH_NS, np.int64)
    order = np.lexsort((launches.start_ns, launches.correlation))
    known = launches.correlation[order]
    place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where((known[place] == correlation) & (correlation >= 0), launches.start_ns[order][place], NO_LAUNCH_NS)
