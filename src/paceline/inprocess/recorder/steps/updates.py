"""Detect parameter updates without an optimizer, by the version counters of the parameters.

Every in-place change of a tensor increments its version (``Tensor._version``). If an optimizer's step is invisible, as
for a compiled optimizer, the versions distinguish an update from another backward pass. Parameters are checked only if
an update is in doubt: before the first visible optimizer step, and after several backward passes without a step.
"""

from __future__ import annotations

import weakref
from time import perf_counter_ns
from typing import Any

from paceline.inprocess.recorder.probe_state import FEW_BACKWARDS, UPDATED, gate

_MOST_PARAMETERS = 16  # checked parameters per optimizer, evenly spaced


class UnseenUpdates:
    """Version counters of some parameters of each optimizer at the last check."""

    def __init__(self, torch: Any) -> None:
        self._unheard = torch._C.DisableTorchFunction
        self._optimizers: list[Any] = []  # weak references
        self._parameters: list[Any] = []  # weak references
        self._versions: list[int] | None = None
        self._stepped = False

    def add(self, optimizer: Any) -> None:
        """Include some parameters of this optimizer in all later checks."""
        self._optimizers = [one for one in self._optimizers if one() is not None] + [weakref.ref(optimizer)]
        self._versions = None

    def stepped(self) -> None:
        """Record a visible optimizer step."""
        self._stepped |= gate.unstepped > 0
        gate.unstepped = 0
        self._versions = None

    def look(self) -> None:
        """Record an update if parameters have changed since the last check."""
        if not self._optimizers or not gate.unstepped or (self._stepped and gate.unstepped <= FEW_BACKWARDS):
            return
        versions = self._read()
        before, self._versions = self._versions, versions
        if before is not None and len(before) == len(versions) and before != versions:
            gate.put((perf_counter_ns(), UPDATED))

    def _read(self) -> list[int]:
        with self._unheard():
            found = [parameter() for parameter in self._parameters] if self._versions is not None else []
            if not found or any(parameter is None for parameter in found):
                found = self._choose()
            return [_version(parameter) for parameter in found]

    def _choose(self) -> list[Any]:
        chosen: list[Any] = []
        for reference in self._optimizers:
            optimizer = reference()
            if optimizer is not None:
                own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
                chosen += own[:: max(1, len(own) // _MOST_PARAMETERS)]
        self._parameters = [weakref.ref(parameter) for parameter in chosen]
        return chosen


def _version(parameter: Any) -> int:
    try:
        return int(parameter._version)
    except RuntimeError:  # inference tensors have no version counter
        return 0
