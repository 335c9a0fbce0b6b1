"""How much faster would a capture be if a part of it took no time? By replay: the share of a part is only a bound.

Communication that nothing hides takes time on the GPU, but where the GPU waits for the host anyway, the host is what
would have to become faster.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.traces.changes import change_of
from paceline.traces.classes import is_transfer
from paceline.traces.critical import Timeline, timeline_of
from paceline.traces.intervals import Ns
from paceline.traces.model import Capture, GpuEvents
from paceline.traces.whatif import Change, Replay, as_it_was

COMMUNICATION, TRANSFER, LOADER, HOST, WAITS = "communication", "transfer", "loader", "host", "waits"
_MOST_EVENTS = 400_000  # 20 µs of CPU time each, over all parts


def _without_transfers(line: Timeline) -> Ns:
    between = np.array([is_transfer(name) for name in line.names], bool)
    return np.where(between[line.name], 0, as_it_was(line))


_CHANGES: Mapping[str, Change] = {
    COMMUNICATION: change_of("communication=gone"),
    TRANSFER: Change(what="copies from and to the host took no time", lasting=_without_transfers),
    LOADER: change_of("loader=gone"),
    HOST: change_of("host=gone"),
    WAITS: change_of("waits=gone"),
}


def speed_ups_without(capture: Capture, events: GpuEvents) -> dict[str, float]:
    """Return by how much faster a capture would be without each of its parts, as a factor.

    Args:
        capture: Of a rank.
        events: Those in the window.

    Returns:
        By the name of the part; empty without GPU events, and for a capture that is too large to be replayed here.
    """
    line = timeline_of(capture, events) if len(events) <= _MOST_EVENTS else None
    if line is None:
        return {}
    replay = Replay(line)
    played = {part: replay.play(change).faster for part, change in _CHANGES.items()}
    return {part: faster if faster is not None else float("inf") for part, faster in played.items()}
