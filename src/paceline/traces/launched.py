"""When was what ran on a GPU launched? By the correlation that a launch and its work share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.traces.intervals import Ns
from paceline.traces.model import Launches

NONE_NS = int(np.iinfo(np.int64).min)  # no launch in the capture


def launched_at(correlation: NDArray[np.int64], launches: Launches) -> Ns:
    """Return when work of some correlations was launched, the first time of several; `NONE_NS` where it was not."""
    if not len(launches.start_ns) or not len(correlation):
        return np.full(len(correlation), NONE_NS, np.int64)
    order = np.lexsort((launches.start_ns, launches.correlation))
    known = launches.correlation[order]
    place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where((known[place] == correlation) & (correlation >= 0), launches.start_ns[order][place], NONE_NS)
