"""New critical errors (Xid) from the event queue of the NVIDIA driver. Reading the queue never blocks.

NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors) explains the numbers: 48 is an uncorrectable ECC error, 79 a
card that has fallen off the bus, 13 and 31 are faults of the program itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from paceline.monitor.gauges.nvml import TIMEOUT, NvmlFault, NvmlLike

_XID_CRITICAL = 0x8  # nvmlEventTypeXidCriticalError
_MOST_EVENTS = 100  # per poll, so that a card with endless errors cannot block the sampler


class XidWatch:
    """The event queue of some GPUs. In many containers events are not permitted; `poll` then returns None."""

    def __init__(self, nvml: NvmlLike, handles: Mapping[int, Any]) -> None:
        self._nvml = nvml
        self._uuids: dict[Any, int] = {}
        self._queue: Any = None
        self.unavailable: dict[str, str] = {}
        try:
            self._queue = nvml.call("nvmlEventSetCreate")
            for index, handle in handles.items():
                nvml.call("nvmlDeviceRegisterEvents", handle, _XID_CRITICAL, self._queue)
                self._uuids[nvml.call("nvmlDeviceGetUUID", handle)] = index
        except Exception as error:
            self._stop(error)

    def poll(self) -> dict[int, list[int]] | None:
        """Return the new Xid numbers by GPU index, or None if events are not available."""
        if self._queue is None:
            return None
        found: defaultdict[int, list[int]] = defaultdict(list)
        try:
            for _ in range(_MOST_EVENTS):
                event = self._nvml.call("nvmlEventSetWait_v2", self._queue, 0)
                found[self._index(event)].append(int(event.eventData))
        except NvmlFault as fault:
            if fault.code != TIMEOUT:
                self._stop(fault)
        except Exception as error:
            self._stop(error)
        return dict(found)

    def _index(self, event: Any) -> int:
        return self._uuids[self._nvml.call("nvmlDeviceGetUUID", event.device)]

    def _stop(self, error: Exception) -> None:
        self._queue = None
        self.unavailable["xids"] = f"NVML: events are not available ({error})"
