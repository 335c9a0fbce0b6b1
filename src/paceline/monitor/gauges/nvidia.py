"""NVML readings of the GPUs of this host: fixed properties once, readings at every sample, slow readings less often.

One table lists each NVML call with its keys and units. If a driver or card does not offer a value, its key is None, the
reason is in `unavailable`, and the value is not requested again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.monitor.gauges.nvml import NvmlFault, NvmlLike
from paceline.monitor.gauges.xid import XidWatch

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReasons).
THROTTLE_REASONS = {
    0x001: "gpu_idle",
    0x002: "application_clocks",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_TX, _RX = 0, 1  # nvmlPcieUtilCounter_t, seen from the GPU
_NVLINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}  # nvmlNvLinkErrorCounter_t
_NVLINK_DATA = {"nvlink_tx_bytes_per_s": 138, "nvlink_rx_bytes_per_s": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_*
_ALL_LINKS = 0xFFFFFFFF
_MAX_LINKS = 36
_MAX_PROCESSES = 32
_EVERY_SLOW = 10
_EVERY_PCIE = 5  # the driver counts bytes for 20 ms in each call


@dataclass(frozen=True, kw_only=True)
class Question:
    """One call of NVML and the keys of its results."""

    keys: tuple[str, ...]
    functions: tuple[str, ...]  # in order of preference: driver versions differ
    arguments: tuple[int, ...] = ()
    answer: Callable[[Any], Any] = lambda value: value  # converts to one value, or a tuple for several keys
    every: int = 1  # interval between calls, in samples


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def throttle_names(bits: int) -> list[str]:
    """Return the throttle reasons that are set in a bit mask; an unknown bit appears as a hexadecimal number."""
    names = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return [*names, hex(unknown)] if unknown else names


def _watts(milliwatts: int) -> float:
    return round(milliwatts / 1000, 1)


FACTS = (
    Question(keys=("uuid",), functions=("nvmlDeviceGetUUID",), answer=_text),
    Question(keys=("name",), functions=("nvmlDeviceGetName",), answer=_text),
    Question(keys=("memory_total_bytes",), functions=("nvmlDeviceGetMemoryInfo",), answer=lambda info: int(info.total)),
    Question(keys=("power_limit_default_w",), functions=("nvmlDeviceGetPowerManagementDefaultLimit",), answer=_watts),
    Question(
        keys=("power_limit_max_w",),
        functions=("nvmlDeviceGetPowerManagementLimitConstraints",),
        answer=lambda limits: _watts(limits[1]),
    ),
    Question(keys=("sm_clock_max_mhz",), functions=("nvmlDeviceGetMaxClockInfo",), arguments=(_SM,)),
    Question(keys=("memory_clock_max_mhz",), functions=("nvmlDeviceGetMaxClockInfo",), arguments=(_MEMORY,)),
    Question(keys=("pcie_max_gen",), functions=("nvmlDeviceGetMaxPcieLinkGeneration",)),
    Question(keys=("pcie_card_max_gen",), functions=("nvmlDeviceGetGpuMaxPcieLinkGeneration",)),
    Question(keys=("pcie_max_width",), functions=("nvmlDeviceGetMaxPcieLinkWidth",)),
)

READINGS = (
    Question(
        keys=("utilization_gpu_percent", "utilization_memory_percent"),
        functions=("nvmlDeviceGetUtilizationRates",),
        answer=lambda rates: (int(rates.gpu), int(rates.memory)),
    ),
    Question(keys=("memory_used_bytes",), functions=("nvmlDeviceGetMemoryInfo",), answer=lambda info: int(info.used)),
    Question(keys=("temperature_c",), functions=("nvmlDeviceGetTemperature",), arguments=(0,)),
    Question(keys=("power_w",), functions=("nvmlDeviceGetPowerUsage",), answer=_watts),
    Question(keys=("power_limit_w",), functions=("nvmlDeviceGetEnforcedPowerLimit",), answer=_watts),
    Question(keys=("sm_clock_mhz",), functions=("nvmlDeviceGetClockInfo",), arguments=(_SM,)),
    Question(keys=("memory_clock_mhz",), functions=("nvmlDeviceGetClockInfo",), arguments=(_MEMORY,)),
    Question(
        keys=("throttle_reasons",),
        functions=("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        answer=throttle_names,
    ),
    Question(keys=("pcie_gen",), functions=("nvmlDeviceGetCurrPcieLinkGeneration",)),
    Question(keys=("pcie_width",), functions=("nvmlDeviceGetCurrPcieLinkWidth",)),
    Question(keys=("pcie_replays",), functions=("nvmlDeviceGetPcieReplayCounter",), every=_EVERY_SLOW),
    Question(
        keys=("pcie_tx_bytes_per_s",),
        functions=("nvmlDeviceGetPcieThroughput",),
        arguments=(_TX,),
        answer=lambda kilobytes: kilobytes * 1000,
        every=_EVERY_PCIE,
    ),
    Question(
        keys=("pcie_rx_bytes_per_s",),
        functions=("nvmlDeviceGetPcieThroughput",),
        arguments=(_RX,),
        answer=lambda kilobytes: kilobytes * 1000,
        every=_EVERY_PCIE,
    ),
    Question(
        keys=("ecc_corrected",),
        functions=("nvmlDeviceGetTotalEccErrors",),
        arguments=(_CORRECTED, _VOLATILE),
        every=_EVERY_SLOW,
    ),
    Question(
        keys=("ecc_uncorrected",),
        functions=("nvmlDeviceGetTotalEccErrors",),
        arguments=(_UNCORRECTED, _VOLATILE),
        every=_EVERY_SLOW,
    ),
)


@dataclass(kw_only=True)
class _Gpu:
    index: int
    handle: Any
    links: int = 0
    closed: set[str] = field(default_factory=set)  # keys that are not requested again
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)  # key -> time in ns, counter


class GpuReader:
    """Reads all GPUs that the driver shows to this process."""

    def __init__(self, nvml: NvmlLike) -> None:
        """Find the GPUs.

        Raises:
            NvmlFault: The driver does not report the number of GPUs.
        """
        self._nvml = nvml
        self._samples = 0
        self.unavailable: dict[str, str] = {}  # "gpu0.power_w" -> reason; grows with the requests
        count = int(nvml.call("nvmlDeviceGetCount"))
        self._gpus = [gpu for gpu in map(self._open, range(count)) if gpu is not None]
        self._xids = XidWatch(nvml, {gpu.index: gpu.handle for gpu in self._gpus})

    def facts(self) -> list[dict[str, Any]]:
        """Return the fixed properties, one entry per GPU."""
        driver = self._driver()
        return [self._facts(gpu, driver) for gpu in self._gpus]

    def read(self, time_ns: int, own_pids: frozenset[int], all_pids_known: bool) -> list[dict[str, Any]]:
        """Return the current readings, one entry per GPU.

        Args:
            time_ns: The time of CLOCK_MONOTONIC.
            own_pids: The processes of the run.
            all_pids_known: Whether the driver certainly uses the same process numbers as this process. If so, a process
                outside ``own_pids`` belongs to another program.
        """
        xids = self._xids.poll()
        self.unavailable |= self._xids.unavailable
        lines = [self._line(gpu, time_ns, xids) for gpu in self._gpus]
        for gpu, line in zip(self._gpus, lines, strict=True):
            line.update(self._usage(gpu, own_pids, all_pids_known))
        self._samples += 1
        return lines

    def _line(self, gpu: _Gpu, time_ns: int, xids: Mapping[int, list[int]] | None) -> dict[str, Any]:
        line: dict[str, Any] = {"index": gpu.index}
        for question in READINGS:
            if self._due(gpu, question.every):
                line.update(self._put(gpu, question))
        if self._due(gpu, _EVERY_SLOW):
            line["nvlink_active"] = self._ask(gpu, "nvlink_active", partial(self._active_links, gpu))
            line["nvlink_errors"] = self._ask(gpu, "nvlink_errors", partial(self._link_errors, gpu))
        for key, number in _NVLINK_DATA.items():
            line[key] = self._ask(gpu, key, partial(self._link_rate, gpu, key, number, time_ns))
        line["xids"] = None if xids is None else xids.get(gpu.index, [])
        return line

    def _due(self, gpu: _Gpu, every: int) -> bool:
        """Return whether to make a call in this sample: in the first two samples, then in every ``every``-th sample."""
        return self._samples < 2 or (self._samples + gpu.index) % every == 0

    def _put(self, gpu: _Gpu, question: Question) -> dict[str, Any]:
        value = self._ask(gpu, question.keys[0], partial(self._answer, gpu, question))
        if value is None:
            for key in question.keys[1:]:
                self._note(gpu, key, self.unavailable.get(f"gpu{gpu.index}.{question.keys[0]}", ""))
            return dict.fromkeys(question.keys)
        return dict(zip(question.keys, value if len(question.keys) > 1 else (value,), strict=True))

    def _answer(self, gpu: _Gpu, question: Question) -> Any:
        return question.answer(self._first(question.functions, gpu.handle, *question.arguments))

    def _first(self, functions: Sequence[str], *arguments: Any) -> Any:
        """Call the first of these NVML functions that the driver supports, and return its result."""
        for function in functions[:-1]:
            try:
                return self._nvml.call(function, *arguments)
            except NvmlFault as fault:
                if not fault.lasting:
                    raise
        return self._nvml.call(functions[-1], *arguments)

    def _ask(self, gpu: _Gpu, key: str, question: Callable[[], Any]) -> Any:
        """Return the result of a call, or record the reason and return None. Permanent errors are not retried."""
        if key in gpu.closed:
            return None
        try:
            return question()
        except NvmlFault as fault:
            self._note(gpu, key, fault.reason)
            if fault.lasting:
                gpu.closed.add(key)
        except Exception as error:  # an unknown version of the binding: stop requesting this key
            self._note(gpu, key, f"{type(error).__name__}: {error}")
            gpu.closed.add(key)
        return None

    def _note(self, gpu: _Gpu, key: str, reason: str) -> None:
        self.unavailable.setdefault(f"gpu{gpu.index}.{key}", f"NVML: {reason.removeprefix('NVML: ')}")

    def _open(self, index: int) -> _Gpu | None:
        try:
            return _Gpu(index=index, handle=self._nvml.call("nvmlDeviceGetHandleByIndex", index))
        except NvmlFault as fault:
            self.unavailable[f"gpu{index}"] = f"NVML: {fault.reason}"
            return None

    def _driver(self) -> str | None:
        try:
            return _text(self._nvml.call("nvmlSystemGetDriverVersion"))
        except NvmlFault as fault:
            self.unavailable["driver_version"] = f"NVML: {fault.reason}"
            return None

    def _facts(self, gpu: _Gpu, driver: str | None) -> dict[str, Any]:
        facts: dict[str, Any] = {"index": gpu.index, "driver_version": driver}
        for question in FACTS:
            facts.update(self._put(gpu, question))
        facts["nvlink_count"] = self._ask(gpu, "nvlink_count", partial(self._count_links, gpu))
        return facts

    def _count_links(self, gpu: _Gpu) -> int:
        """Return the number of NVLinks of the card, whether they are up or not."""
        self._nvml.call("nvmlDeviceGetNvLinkState", gpu.handle, 0)  # raises for a card without NVLink
        for link in range(1, _MAX_LINKS):
            try:
                self._nvml.call("nvmlDeviceGetNvLinkState", gpu.handle, link)
            except NvmlFault:
                gpu.links = link
                return link
        gpu.links = _MAX_LINKS
        return _MAX_LINKS

    def _active_links(self, gpu: _Gpu) -> int:
        states = [self._nvml.call("nvmlDeviceGetNvLinkState", gpu.handle, link) for link in _links(gpu)]
        return sum(1 for state in states if state)

    def _link_errors(self, gpu: _Gpu) -> dict[str, int]:
        """Return the number of errors since the driver was loaded, by kind, over all NVLinks of a GPU."""
        ask = self._nvml.call
        return {
            kind: sum(int(ask("nvmlDeviceGetNvLinkErrorCounter", gpu.handle, each, code)) for each in _links(gpu))
            for kind, code in _NVLINK_ERRORS.items()
        }

    def _link_rate(self, gpu: _Gpu, key: str, number: int, time_ns: int) -> float | None:
        """Return the payload rate over all NVLinks since the last reading, in bytes/s; None at the first reading."""
        _links(gpu)
        value = self._nvml.call("nvmlDeviceGetFieldValues", gpu.handle, [(number, _ALL_LINKS)])[0]
        if value.nvmlReturn != 0:
            raise NvmlFault(int(value.nvmlReturn), f"no field value {number}")
        now = (time_ns, int(value.value.ullVal) * 1024)
        then = gpu.counted.get(key)
        gpu.counted[key] = now
        if then is None or now[0] <= then[0]:
            return None
        return round(max(0, now[1] - then[1]) / ((now[0] - then[0]) / 1e9), 1)

    def _usage(self, gpu: _Gpu, own_pids: frozenset[int], all_pids_known: bool) -> dict[str, Any]:
        """Return the processes that use memory of the GPU, and the memory of the run's and of other processes."""
        functions = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2")
        found = self._ask(gpu, "processes", partial(self._first, functions, gpu.handle))
        if found is None:
            return {"processes": None, "own_memory_bytes": None, "other_memory_bytes": None}
        otherwise = False if all_pids_known else None
        processes = [
            {"pid": each.pid, "memory_bytes": each.usedGpuMemory, "own": each.pid in own_pids or otherwise}
            for each in found[:_MAX_PROCESSES]
        ]
        return {
            "processes": processes,
            "own_memory_bytes": _held(processes, True, all_pids_known),
            "other_memory_bytes": _held(processes, False, all_pids_known),
        }


def _links(gpu: _Gpu) -> range:
    if not gpu.links:
        raise NvmlFault(3, "the card has no NVLink, or the driver does not show it")
    return range(gpu.links)


def _held(processes: list[dict[str, Any]], own: bool, all_pids_known: bool) -> int | None:
    """Return the memory of the run's processes (``own``) or of the others, in bytes; None if it is not certain."""
    sizes = [each["memory_bytes"] for each in processes if each["own"] is own]
    sure = all_pids_known or (own and bool(sizes))
    return sum(sizes) if sure and None not in sizes else None
