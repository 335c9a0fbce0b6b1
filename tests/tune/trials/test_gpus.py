"""GPUs during blocks of steps: which pairs count under drifting clocks, and how many processes fit in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.monitor.gauges.nvml import NvmlFault
from paceline.tune.comparison.paired_blocks import BlockPair, fair_pairs
from paceline.tune.comparison.statistics import speed_up
from paceline.tune.trials import gpus as gpu_blocks
from paceline.tune.trials.blocks import StepBlock
from paceline.tune.trials.gpus import (
    GpuMemory,
    GpuSampler,
    GpuState,
    NvmlReader,
    pairs_with_changed_clocks,
    processes_that_fit,
    summarize,
)

GIB = float(1 << 30)


def state(clock: float | None) -> GpuState:
    return GpuState(sm_clock_mhz=clock, temperature_c=60.0)


def pairs_of(*clocks: tuple[float | None, float | None]) -> list[tuple[GpuState, GpuState]]:
    return [(state(before), state(after)) for before, after in clocks]


# -- which pairs count ----------------------------------------------------------------------------------


def test_as_many_pairs_are_left_out_on_each_side():
    alike = [(1900.0, 1900.0)] * 5
    assert pairs_with_changed_clocks(pairs_of(*alike, (1900.0, 1500.0), (1500.0, 1900.0))) == {5, 6}
    assert pairs_with_changed_clocks(pairs_of(*alike, (1900.0, 1500.0), (1900.0, 1400.0), (1500.0, 1900.0))) == {6, 7}


def test_clocks_that_the_candidate_lowers_belong_to_its_result():
    assert pairs_with_changed_clocks(pairs_of(*[(1900.0, 1900.0)] * 5, (1900.0, 1500.0), (1900.0, 1400.0))) == set()
    assert pairs_with_changed_clocks(pairs_of(*[(1900.0, 1600.0)] * 7)) == set()


def test_a_drift_that_both_blocks_share_leaves_no_pair_out():
    assert pairs_with_changed_clocks(pairs_of(*[(1900.0 - 50 * i, 1895.0 - 50 * i) for i in range(8)])) == set()


def test_unknown_clocks_leave_no_pair_out():
    assert pairs_with_changed_clocks([(None, None)] * 5) == set()
    assert pairs_with_changed_clocks(pairs_of(*[(None, 1900.0)] * 5)) == set()
    assert (
        pairs_with_changed_clocks(pairs_of((1900.0, 1500.0), (1500.0, 1900.0))) == set()
    )  # too few to know what is usual


def block(seconds: float, clock: float | None) -> StepBlock:
    gpu = None if clock is None else state(clock)
    return StepBlock(steps=10, seconds=seconds, cpu_s=0.1, other_cores=0.0, gpu=gpu)


def test_pairs_under_changed_clocks_are_set_aside():
    clocks = [*[(1900.0, 1900.0)] * 5, (1900.0, 1500.0), (1500.0, 1900.0)]
    pairs = [BlockPair(baseline=block(1.0, a), candidate=block(0.5, b)) for a, b in clocks]
    assert fair_pairs(pairs) == pairs[:5]


# -- simulated comparisons ------------------------------------------------------------------------------


def simulated(kind: str, rng: np.random.Generator, pairs: int = 24) -> list[BlockPair]:
    """A candidate that needs 1/1.1 of the cycles; blocks of 0.6 s in the order ABBA, on a GPU whose clock drifts."""
    found, clock, at_s = [], 1.0, 0.0
    for number in range(pairs):
        blocks: dict[bool, StepBlock] = {}
        for candidate in (False, True) if number % 2 == 0 else (True, False):
            if kind == "warms up":
                clock = 0.8 + 0.2 * math.exp(-at_s / 6)
            elif kind == "jumps" and rng.random() < 0.15:
                clock = 1.75 - clock
            elif kind == "caused":
                clock = 0.75 if candidate and rng.random() < 0.3 else 1.0
            seconds = 0.6 / clock * (1 / 1.1 if candidate else 1.0) * math.exp(rng.normal(0, 0.01))
            blocks[candidate] = block(seconds, 1900.0 * clock * math.exp(rng.normal(0, 0.003)))
            at_s += seconds
        found.append(BlockPair(baseline=blocks[False], candidate=blocks[True]))
    return found


def truth_of(kind: str) -> float:
    return 1.1 if kind != "caused" else 1.1 / (0.7 + 0.3 / 0.75)


def interval(pairs):
    return speed_up([[(p.baseline.seconds, p.candidate.seconds) for p in pairs]])


@pytest.mark.parametrize("kind", ["warms up", "jumps"])
def test_the_interval_seldom_misses_the_truth_under_drifting_clocks(kind):
    rng, truth, missed = np.random.default_rng(1), truth_of(kind), 0
    for _ in range(200):
        pairs = simulated(kind, rng)
        looks = [interval(fair_pairs(pairs[:n])) for n in range(4, len(pairs) + 1, 2)]
        missed += any(not look.low <= truth <= look.high for look in looks)
    assert missed <= 10


def test_setting_pairs_aside_makes_the_interval_narrower_where_clocks_jump():
    rng, widths = np.random.default_rng(2), ([], [])
    for _ in range(60):
        pairs = simulated("jumps", rng)
        for each, chosen in zip(widths, (fair_pairs(pairs), pairs)):
            found = interval(chosen)
            each.append(math.log(found.high / found.low))
    assert np.median(widths[0]) < 0.8 * np.median(widths[1])


def test_a_gain_is_not_larger_because_the_candidate_throttles():
    rng = np.random.default_rng(3)
    gains = [interval(fair_pairs(simulated("caused", rng))).value for _ in range(100)]
    assert abs(np.mean(gains) / truth_of("caused") - 1) < 0.01


def test_pairs_of_new_processes_hold_the_scatter_between_processes():
    rng, missed = np.random.default_rng(4), 0
    for _ in range(200):
        speeds = np.exp(rng.normal(0, 0.02, size=(16, 2)) + rng.normal(0, 0.01, size=(16, 2)))
        values = [(3.0 * a, 3.0 / 1.1 * b) for a, b in speeds]
        looks = [speed_up([values[:n]]) for n in range(2, 17)]
        missed += any(not look.low <= 1.1 <= look.high for look in looks)
    assert missed <= 10


# -- readings -------------------------------------------------------------------------------------------


class Driver:
    """NVML that knows one card."""

    def call(self, function, *arguments):
        if function == "nvmlDeviceGetHandleByUUID":
            if arguments[0] != "GPU-a":
                raise NvmlFault(6, "not found")
            return 7
        return {
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetTemperature": 71,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x044,
        }[function]


def test_a_block_has_the_state_of_its_gpus(monkeypatch):
    sampler = GpuSampler(lambda: NvmlReader(Driver()))
    assert sampler.end() is None  # no GPU is used
    sampler.heard([{"gpus": [["a", 30, 80], ["of another maker", 1, 2]]}, {"gpus": [["a", 20, 80]]}, {}])
    assert [gpu.uuid for gpu in sampler.memory] == ["a", "of another maker"]
    sampler.begin()
    monkeypatch.setattr(gpu_blocks.time, "monotonic", lambda: math.inf)
    sampler.sample()
    assert sampler.end() == GpuState(sm_clock_mhz=1500.0, temperature_c=71.0, throttled=("hw_thermal", "power_cap"))


def test_without_a_driver_clocks_are_unknown():
    sampler = GpuSampler(lambda: None)
    sampler.heard([{"gpus": [["a", 30, 80]]}])
    assert sampler.end() == GpuState(sm_clock_mhz=None, temperature_c=None)


def test_an_idle_gpu_says_nothing_about_clocks():
    idle = {"sm_clock_mhz": 210.0, "temperature_c": 50.0, "throttle_reasons": ["gpu_idle"]}
    busy = {"sm_clock_mhz": 1800.0, "temperature_c": 50.0, "throttle_reasons": []}
    assert summarize([[idle, idle, busy]]).sm_clock_mhz == 1800


def test_several_blocks_have_a_range():
    found = gpu_blocks.range_over_blocks([None, state(1500.0), state(None), state(1900.0)])
    assert (found.sm_clock_low_mhz, found.sm_clock_high_mhz, found.temperature_c) == (1500.0, 1900.0, 60.0)
    assert gpu_blocks.range_over_blocks([None]) is None


# -- memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("used_gib", "fitting"), [(5, 12), (30, 2), (36, 1), (41, 1), (79, 1)])
def test_a_second_process_needs_room(used_gib, fitting):
    gpu = GpuMemory(uuid="a", free_bytes=(80 - used_gib) * GIB, total_bytes=80 * GIB)
    roomy = GpuMemory(uuid="b", free_bytes=79 * GIB, total_bytes=80 * GIB)
    assert processes_that_fit([roomy, gpu]) == fitting


def test_a_program_without_gpus_has_no_limit():
    assert processes_that_fit([]) > 100
