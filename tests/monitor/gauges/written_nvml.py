"""A GPU that was written by hand: NVML's answers over some seconds, as its documentation describes them.

**No GPU has been seen.** Not one of these numbers was read from a card; they were made up to be plausible for two
SXM cards of the A100 kind, the second of which gets hot, loses NVLink lanes, reports an Xid and falls off the bus.
What the tests on this file hold is that we ask as NVML documents it and pass on what it says; that a driver really
answers so remains to be seen on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from paceline.monitor.gauges.nvml import TIMEOUT, NvmlFault

NOT_SUPPORTED = NvmlFault(3, "Not Supported")
NO_FUNCTION = NvmlFault(13, "Function Not Found")
GPU_LOST = NvmlFault(15, "GPU is lost")
NO_PERMISSION = NvmlFault(4, "Insufficient Permissions")

GIB = 2**30


def utilization(gpu: int, memory: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=gpu, memory=memory)


def memory(used: int) -> SimpleNamespace:
    return SimpleNamespace(total=80 * GIB, used=used, free=80 * GIB - used)


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def field_value(kibibytes: int, error: int = 0) -> list[SimpleNamespace]:
    return [SimpleNamespace(nvmlReturn=error, value=SimpleNamespace(ullVal=kibibytes))]


def xid(card: str, number: int) -> SimpleNamespace:
    return SimpleNamespace(device=card, eventType=8, eventData=number)


STEADY: Mapping[str, Any] = {
    "nvmlDeviceGetUUID": "GPU-0000",
    "nvmlDeviceGetName": b"NVIDIA A100-SXM4-80GB",  # old bindings give bytes
    "nvmlDeviceGetMemoryInfo": memory(10 * GIB),
    "nvmlDeviceGetPowerManagementDefaultLimit": 400_000,
    "nvmlDeviceGetPowerManagementLimitConstraints": [100_000, 400_000],
    ("nvmlDeviceGetMaxClockInfo", 1): 1410,
    ("nvmlDeviceGetMaxClockInfo", 2): 1593,
    "nvmlDeviceGetMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": 4,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetUtilizationRates": utilization(97, 61),
    "nvmlDeviceGetTemperature": 58,
    "nvmlDeviceGetPowerUsage": 312_450,
    "nvmlDeviceGetEnforcedPowerLimit": 400_000,
    ("nvmlDeviceGetClockInfo", 1): 1395,
    ("nvmlDeviceGetClockInfo", 2): 1593,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x0,
    "nvmlDeviceGetCurrPcieLinkGeneration": 4,
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetPcieReplayCounter": 0,
    ("nvmlDeviceGetPcieThroughput", 0): 1_200,
    ("nvmlDeviceGetPcieThroughput", 1): 8_400_000,
    ("nvmlDeviceGetTotalEccErrors", 0): 3,
    ("nvmlDeviceGetTotalEccErrors", 1): 0,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetNvLinkState": 1,
    "nvmlDeviceGetNvLinkErrorCounter": 0,
    "nvmlDeviceGetFieldValues": field_value(0),
}


class WrittenNvml:
    """Answers from a list of moments, one table of answers a card; `moment` is set by the test."""

    def __init__(
        self, moments: Sequence[Sequence[Mapping[Any, Any]]], events: Sequence[SimpleNamespace] = (), links: int = 12
    ) -> None:
        self.moment = 0
        self.calls: list[str] = []
        self._moments = moments
        self._events = list(events)
        self._links = links

    def call(self, function: str, *arguments: Any) -> Any:
        self.calls.append(function)
        answer = self._answer(function, arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _answer(self, function: str, arguments: tuple[Any, ...]) -> Any:
        host = self._of_the_host(function, arguments)
        return self._of_a_card(function, *arguments) if host is None else host

    def _of_the_host(self, function: str, arguments: tuple[Any, ...]) -> Any:
        cards = len(self._moments[self.moment])
        return {
            "nvmlDeviceGetCount": cards,
            "nvmlSystemGetDriverVersion": "580.65.06",
            "nvmlEventSetCreate": "the queue",
            "nvmlDeviceRegisterEvents": 0,
            "nvmlDeviceGetHandleByIndex": f"card {arguments[0]}" if arguments else None,
            "nvmlEventSetWait_v2": self._next_event(function),
        }.get(function)

    def _next_event(self, function: str) -> Any:
        if function != "nvmlEventSetWait_v2":
            return None
        return self._events.pop(0) if self._events else NvmlFault(TIMEOUT, "Timeout")

    def _of_a_card(self, function: str, handle: str, *arguments: Any) -> Any:
        index = int(handle.removeprefix("card "))
        answers = {**STEADY, "nvmlDeviceGetUUID": f"GPU-000{index}", **self._moments[self.moment][index]}
        if function == "nvmlDeviceGetNvLinkState" and arguments[0] >= self._links:
            return NvmlFault(2, "Invalid Argument")
        first = arguments[0] if arguments and isinstance(arguments[0], int) else None
        specific = answers.get((function, first), answers.get(function))
        return NO_FUNCTION if specific is None else specific
