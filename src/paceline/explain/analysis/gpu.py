"""The use of a rank's GPU while the rank trained, from readings between the first and the last step.

A reading is *under load* if the GPU computed in at least half of the interval before the reading (NVML's utilization:
the share of time in which a kernel ran). Clocks, power and the PCIe link are judged from readings under load only,
because an idle GPU lowers all three to save power.

The rate of a PCIe link in one direction, before packet headers (PCI Express base specifications 1.0 to 6.0):

    bytes/s = lanes * transfers/s * (payload bits / line bits) / 8

The meaning of the driver's readings is taken from NVML's documentation (docs.nvidia.com/deploy/nvml-api). The
utilization was seen to be right on an H100 (benchmarks/results/gpu-proof-*.json).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.core.statistics import warmup_length
from paceline.explain.analysis.host import mean_reading, values_of, while_stepping
from paceline.record.run import JsonObject, Rank, Run, column

LOADED = 50  # percent of utilization from which a reading is under load
_HEAT = frozenset({"sw_thermal", "hw_thermal"})
_POWER = frozenset({"power_cap"})
_BRAKE = frozenset({"hw_power_brake"})
_FEW = 3  # with fewer readings than this, a median is not used
_TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
_LINE_CODE = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}


@dataclass(frozen=True, kw_only=True)
class Throttle:
    """Clock reductions of the GPU for one kind of reason, under load."""

    share: float  # share of the readings under load
    readings: int
    clock_mhz: float | None  # median SM clock in the readings with this reason
    # median SM clock in readings without throttling; the highest clock of the GPU if there are few
    free_clock_mhz: float | None

    @property
    def deficit(self) -> float:
        """Share of the clock that is lost in readings with this reason."""
        if not self.clock_mhz or not self.free_clock_mhz:
            return 0.0
        return max(0.0, 1 - self.clock_mhz / self.free_clock_mhz)


@dataclass(frozen=True, kw_only=True)
class PcieLink:
    """The PCIe link under load; the best values of all readings."""

    generation: int
    lanes: int
    max_generation: int  # highest generation that both card and slot support
    max_lanes: int
    card_max_generation: int | None
    readings: int


@dataclass(frozen=True, kw_only=True)
class Errors:
    """The errors of the GPU during the run."""

    xids: Mapping[int, int]  # Xid number -> number of reports
    uncorrected: int | None  # memory errors that ECC could not correct; None if unknown
    corrected: int | None
    link: Mapping[str, int]  # NVLink errors by kind


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """A process outside the run that uses memory of the GPU."""

    pid: int
    memory_bytes: float | None
    readings: int


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """The use of one GPU while one rank trained on it. None means not measured."""

    index: int
    name: str
    readings: int
    loaded: int  # number of the readings under load
    utilization: float | None  # mean share of time in which a kernel ran
    memory_used_bytes: float | None  # maximum
    memory_total_bytes: float | None
    temperature_c: float | None  # maximum
    power_w: float | None  # mean over readings under load
    power_limit_w: float | None  # lowest enforced limit
    power_limit_default_w: float | None
    heat: Throttle | None
    power: Throttle | None
    brake: Throttle | None
    link: PcieLink | None
    errors: Errors
    strangers: Sequence[Stranger]

    @property
    def power_share(self) -> float | None:
        """Power under load as a share of the power limit, or None if unknown."""
        if self.power_w is None or not self.power_limit_w:
            return None
        return self.power_w / self.power_limit_w


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """State of torch's memory allocator, in bytes, from the ticks of the rank."""

    total: float
    peak_allocated: float
    reserved: float  # maximum
    retries: int  # number of allocations that first had to free cached memory
    readings: int


def gpu_use(run: Run, rank: Rank) -> GpuUse | None:
    """Return the use of the GPU of a rank. None on a CPU, without readings, or if it is unclear which GPU it was."""
    if rank.device != "cuda":
        return None
    lines = run.gauges.get(rank.host, ())
    head: JsonObject = next((x for x in lines if x.get("kind") == "header"), {})
    facts = _properties_of(rank, head.get("gpus") or ())
    if facts is None:
        return None
    taken = [x for x in lines if x.get("kind") == "host"]
    stepping = _of_gpu(facts["index"], while_stepping(replace(run, ranks=(rank,)), taken))
    steady = _of_gpu(facts["index"], _while_steady(rank, taken))
    return _use(facts, stepping, steady or stepping, _of_gpu(facts["index"], taken)) if stepping else None


def _while_steady(rank: Rank, lines: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the lines whose interval lies after the warm-up and before the end of the last step.

    A GPU idles while a program warms up, and a reading that was taken just after the last step is half of idle time.
    """
    ends, warmup = rank.steps["end_ns"], warmup_length(column(rank.steps, "wall_s"))
    begin = float(ends[warmup - 1]) if warmup else float(rank.meta.get("first_ns") or 0)
    last = float(ends[-1]) if len(ends) else 0.0
    return [x for x in lines if begin <= x["time_ns"] - 1e9 * x.get("interval_s", 1.0) and x["time_ns"] <= last]


def why_no_gpu(run: Run, rank: Rank) -> str | None:
    """Return why a rank on a GPU has no readings. None if it has readings, or if the gauges give the reason."""
    lines = run.gauges.get(rank.host, ())
    cards = next((x.get("gpus") for x in lines if x.get("kind") == "header"), None)
    if rank.device != "cuda" or not cards or gpu_use(run, rank) is not None:
        return None
    visible, name = str(rank.meta.get("visible_devices") or ""), str(rank.meta.get("device_name") or "")
    if " MIG " in f"{name} " or "MIG-" in visible:
        return f"the rank trained on a MIG slice ({name or visible}), and the driver gives its readings for whole cards"
    if _properties_of(rank, cards) is not None:
        return "no reading was taken between the first and the last step"
    uuid = rank.meta.get("device_uuid")
    if uuid:
        return f"none of the {len(cards)} cards that the driver lists has the UUID of the rank's GPU ({uuid})"
    return f"the rank's GPU could not be matched to a card (CUDA_VISIBLE_DEVICES={visible or 'not set'}, no UUID)"


def _properties_of(rank: Rank, gpus: Sequence[JsonObject]) -> JsonObject | None:
    """Return the recorded properties of the rank's GPU, found by UUID or else by index and CUDA_VISIBLE_DEVICES."""
    uuid = _bare(rank.meta.get("device_uuid"))
    if uuid:
        return next((g for g in gpus if _bare(g.get("uuid")) == uuid), None)
    index = rank.meta.get("device_index")
    visible = rank.meta.get("visible_devices")
    if visible and isinstance(index, int):
        numbers = [each.strip() for each in str(visible).split(",")]
        index = int(numbers[index]) if index < len(numbers) and numbers[index].isdigit() else None
    return next((g for g in gpus if g.get("index") == index), None)


def _bare(uuid: object) -> str:
    return str(uuid or "").lower().removeprefix("gpu-")


def _of_gpu(index: int, lines: Sequence[JsonObject]) -> list[JsonObject]:
    return [g for x in lines for g in x.get("gpus") or () if g.get("index") == index]


def _use(
    facts: JsonObject, readings: Sequence[JsonObject], steady: Sequence[JsonObject], whole: Sequence[JsonObject]
) -> GpuUse:
    """Return the use of a GPU, from its readings during training steps, and its utilization from the steady ones.

    Errors are counted over the whole run, because an error often ends it.
    """
    loaded = [r for r in readings if (r.get("utilization_gpu_percent") or 0) >= LOADED]
    utilization = mean_reading(steady, "utilization_gpu_percent")
    highest = facts.get("sm_clock_max_mhz")
    return GpuUse(
        index=int(facts["index"]),
        name=str(facts.get("name") or ""),
        readings=len(readings),
        loaded=len(loaded),
        utilization=None if utilization is None else utilization / 100,
        memory_used_bytes=max(values_of(readings, "memory_used_bytes"), default=None),
        memory_total_bytes=facts.get("memory_total_bytes"),
        temperature_c=max(values_of(readings, "temperature_c"), default=None),
        power_w=mean_reading(loaded, "power_w"),
        power_limit_w=min(values_of(readings, "power_limit_w"), default=None),
        power_limit_default_w=facts.get("power_limit_default_w"),
        heat=_throttle(loaded, _HEAT, highest),
        power=_throttle(loaded, _POWER, highest),
        brake=_throttle(loaded, _BRAKE, highest),
        link=_link(loaded, facts),
        errors=_errors(whole),
        strangers=_strangers(readings),
    )


def _median(readings: Sequence[JsonObject], key: str) -> float | None:
    values = values_of(readings, key)
    return float(np.median(values)) if values else None


def _throttle(loaded: Sequence[JsonObject], reasons: frozenset[str], highest: float | None) -> Throttle | None:
    told = [r for r in loaded if r.get("throttle_reasons") is not None]
    if not told:
        return None
    cut = [r for r in told if reasons & set(r["throttle_reasons"])]
    free = [r for r in told if not (_HEAT | _POWER | _BRAKE) & set(r["throttle_reasons"])]
    return Throttle(
        share=len(cut) / len(told),
        readings=len(told),
        clock_mhz=_median(cut, "sm_clock_mhz"),
        free_clock_mhz=_median(free, "sm_clock_mhz") if len(free) >= _FEW else highest,
    )


def _link(loaded: Sequence[JsonObject], facts: JsonObject) -> PcieLink | None:
    generations, lanes = values_of(loaded, "pcie_gen"), values_of(loaded, "pcie_width")
    most = facts.get("pcie_max_gen"), facts.get("pcie_max_width")
    if not generations or not lanes or not most[0] or not most[1]:
        return None
    return PcieLink(
        generation=int(max(generations)),
        lanes=int(max(lanes)),
        max_generation=int(most[0]),
        max_lanes=int(most[1]),
        card_max_generation=facts.get("pcie_card_max_gen"),
        readings=min(len(generations), len(lanes)),
    )


def _errors(readings: Sequence[JsonObject]) -> Errors:
    xids = Counter(int(number) for r in readings for number in r.get("xids") or ())
    kinds = [dict(r["nvlink_errors"]) for r in readings if r.get("nvlink_errors")]
    grown = {kind: int(count - kinds[0].get(kind, 0)) for kind, count in kinds[-1].items()} if kinds else {}
    return Errors(
        xids=dict(xids),
        uncorrected=_grown(readings, "ecc_uncorrected"),
        corrected=_grown(readings, "ecc_corrected"),
        link={kind: count for kind, count in grown.items() if count > 0},
    )


def _grown(readings: Sequence[JsonObject], key: str) -> int | None:
    """Return by how much a counter rose during the run; the counter itself started when the driver was loaded."""
    values = values_of(readings, key)
    return int(max(values) - values[0]) if values else None


def _strangers(readings: Sequence[JsonObject]) -> list[Stranger]:
    """Return the processes that are certainly not part of the run; none if the driver cannot tell (``own`` is null)."""
    seen: Counter[int] = Counter()
    memory: dict[int, float | None] = {}
    for process in (p for r in readings for p in r.get("processes") or () if p.get("own") is False):
        seen[process["pid"]] += 1
        memory[process["pid"]] = process.get("memory_bytes")
    return [Stranger(pid=pid, memory_bytes=memory[pid], readings=count) for pid, count in seen.most_common()]


def device_memory(rank: Rank) -> DeviceMemory | None:
    """Return the state of a rank's memory allocator, or None on a CPU."""
    total = rank.meta.get("device_total_bytes")
    ticks = rank.ticks[~np.isnan(rank.ticks["device_peak_bytes"])]
    if rank.device != "cuda" or not total or not len(ticks):
        return None
    return DeviceMemory(
        total=float(total),
        peak_allocated=float(ticks["device_peak_bytes"].max()),
        reserved=float(np.nanmax(ticks["device_reserved_bytes"])),
        retries=int(np.nan_to_num(ticks["device_retries"]).max()),
        readings=len(ticks),
    )


def pcie_bytes_per_s(generation: int, lanes: int) -> float | None:
    """Return the line rate of a link in bytes/s, one direction. None for an unknown generation or without lanes."""
    if generation not in _TRANSFERS_PER_S or lanes < 1:
        return None
    return lanes * _TRANSFERS_PER_S[generation] * _LINE_CODE[generation] / 8
