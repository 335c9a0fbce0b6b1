"""Where does GPU time go, by kernel? Exact sums over events of one name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.traces.model import GpuEvents


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """All events of one name in a window; nanoseconds."""

    name: str
    class_: int  # a place in `model.CLASSES`
    count: int
    total_ns: int
    max_ns: int

    @property
    def mean_ns(self) -> float:
        """Of one event."""
        return self.total_ns / self.count


def kernels_of(events: GpuEvents) -> list[Kernel]:
    """Return the kernels, copies and sets of memory of a window, what takes most first."""
    if not len(events):
        return []
    lasted = np.maximum(events.end_ns - events.start_ns, 0)
    order = np.argsort(events.name, kind="stable")
    names = events.name[order]
    begins = np.flatnonzero(np.append(True, names[1:] != names[:-1]))
    columns = (
        names[begins],
        events.class_[order[begins]],
        np.diff(np.append(begins, len(names))),
        np.add.reduceat(lasted[order], begins),
        np.maximum.reduceat(lasted[order], begins),
    )
    found = [
        Kernel(name=events.names[name], class_=class_, count=count, total_ns=total, max_ns=most)
        for name, class_, count, total, most in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return sorted(found, key=lambda kernel: (-kernel.total_ns, kernel.name))
