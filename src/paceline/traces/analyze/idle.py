"""The causes of idle GPU time: each gap is divided by what the host did before it launched the next event.

A gap [a, b) ends with an event whose launch began at time l on the host. Before l the GPU had no work, so the host is
the cause of this part. Within it, the time in which the host fetches a batch counts as loader, and the time in a call
that waits for the GPU as synchronising. From l on, the launched work had not started yet; this part counts as device.
If the event has no launch in the capture, the cause is unknown. The five parts sum to the idle time:

    loader + synchronising + host + device + unknown = idle
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.traces.capture import NO_LAUNCH_NS, GpuEvents, HostActivity, Launches, launched_at
from paceline.traces.intervals import EMPTY, Ns, Union, difference, intersection, union_of

MICRO_NS = 10_000  # shorter gaps occur between consecutive launches


@dataclass(frozen=True, kw_only=True)
class Idle:
    """Idle time between the first and the last GPU event, by cause, in nanoseconds."""

    gaps: int
    micro_ns: int  # in gaps below `MICRO_NS`
    macro_ns: int  # in longer gaps
    loader_ns: int
    synchronising_ns: int
    host_ns: int
    device_ns: int
    unknown_ns: int

    @property
    def total_ns(self) -> int:
        """Return the total idle nanoseconds."""
        return self.micro_ns + self.macro_ns

    @property
    def causes_ns(self) -> Mapping[str, int]:
        """Return the idle nanoseconds by cause; the five causes sum to the total."""
        return {
            "loader": self.loader_ns,
            "synchronising": self.synchronising_ns,
            "host": self.host_ns,
            "device": self.device_ns,
            "unknown": self.unknown_ns,
        }


def idle_of(events: GpuEvents, launches: Launches, host: HostActivity) -> Idle:
    """Return the idle time between GPU events, split by cause."""
    gaps = _gaps(events)
    lasted = gaps.ends_ns - gaps.starts_ns
    launched = _launch_of(events, launches, gaps.ends_ns)
    known = launched != NO_LAUNCH_NS
    until = np.clip(launched, gaps.starts_ns, gaps.ends_ns)
    hosts = union_of(gaps.starts_ns[known], until[known])
    loader = intersection(hosts, host.loader).length_ns
    synchronising = intersection(difference(hosts, host.loader), host.synchronising).length_ns
    return Idle(
        gaps=len(lasted),
        micro_ns=int(lasted[lasted < MICRO_NS].sum()),
        macro_ns=int(lasted[lasted >= MICRO_NS].sum()),
        loader_ns=loader,
        synchronising_ns=synchronising,
        host_ns=hosts.length_ns - loader - synchronising,
        device_ns=int((gaps.ends_ns - until)[known].sum()),
        unknown_ns=int(lasted[~known].sum()),
    )


def _gaps(events: GpuEvents) -> Union:
    """Return the gaps between GPU events, from the first start to the last end.

    Events without duration count only as the first or the last event.
    """
    if not len(events):
        return EMPTY
    busy = union_of(events.start_ns, events.end_ns)
    starts = np.append(events.start_ns.min(), busy.ends_ns)
    return union_of(starts, np.append(busy.starts_ns, events.end_ns.max()))


def _launch_of(events: GpuEvents, launches: Launches, starts_ns: Ns) -> Ns:
    """Return for each start time the launch time of the event that starts then, or `NO_LAUNCH_NS`."""
    first = np.argsort(events.start_ns, kind="stable")
    real = first[events.end_ns[first] > events.start_ns[first]]
    place = np.searchsorted(events.start_ns[real], starts_ns)
    found = np.full(len(starts_ns), NO_LAUNCH_NS, np.int64)
    there = place < len(real)  # no event with a duration starts at the last end
    found[there] = launched_at(events.correlation[real[place[there]]], launches)
    return found
