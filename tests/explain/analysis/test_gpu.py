"""The analysis of GPU readings, with made-up readings."""

from __future__ import annotations

import pytest
from tests.explain.build import RunFolder, plain
from tests.explain.gpu_run import GIB, gpu_run, timed, window

from paceline.explain.analysis.gpu import gpu_use, pcie_bytes_per_s
from paceline.explain.diagnose import diagnose


def test_a_healthy_gpu(tmp_path):
    ((rank, gpu),) = gpu_run(tmp_path).gpus
    assert (gpu.index, gpu.name, gpu.readings, gpu.loaded) == (0, "NVIDIA H200", 20, 20)
    assert gpu.utilization == pytest.approx(0.97)
    assert gpu.power_share == pytest.approx(520 / 700)
    assert (gpu.heat.share, gpu.power.share, gpu.brake.share) == (0, 0, 0)
    assert (gpu.link.generation, gpu.link.lanes) == (5, 16)
    assert not gpu.errors.xids and not gpu.strangers
    assert (rank.memory.peak_allocated, rank.memory.reserved, rank.memory.retries) == (90 * GIB, 95 * GIB, 0)


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        ({}, True),
        ({"device_uuid": "99999999-2222-3333-4444-555555555555"}, False),  # a MIG slice, or another card
        ({"device_uuid": ""}, True),  # torch without UUIDs: the first of all
        ({"device_uuid": "", "visible_devices": "3,0", "device_index": 1}, True),
        ({"device_uuid": "", "visible_devices": "3,0", "device_index": 0}, False),
        ({"device_uuid": "", "visible_devices": "GPU-1111", "device_index": 0}, False),
        ({"device_uuid": "", "device_index": 1}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_a_rank_finds_its_gpu_or_none(tmp_path, meta, found):
    assert bool(gpu_run(tmp_path, meta=meta).gpus) == found


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({}, None),
        ({"device": "cpu"}, None),
        (
            {"device_uuid": "99999999-2222-3333-4444-555555555555", "device_name": "NVIDIA H200 MIG 1g.18gb"},
            "the rank trained on a MIG slice (NVIDIA H200 MIG 1g.18gb)",
        ),
        ({"device_uuid": "", "visible_devices": "MIG-1111", "device_index": 0, "device_name": ""}, "slice (MIG-1111)"),
        ({"device_uuid": "99999999-2222-3333-4444-555555555555"}, "none of the 1 cards that the driver lists"),
        ({"device_uuid": "", "visible_devices": "3,0", "device_index": 0}, "(CUDA_VISIBLE_DEVICES=3,0, no UUID)"),
    ],
)
def test_why_a_rank_has_no_readings_of_its_gpu(tmp_path, meta, reason):
    told = diagnose(gpu_run(tmp_path, meta=meta).run).unavailable.get("gpu")
    assert told is None if reason is None else reason in told


def test_readings_before_and_after_the_steps_do_not_count(tmp_path):
    facts = gpu_run(tmp_path)
    run = facts.run
    lines = list(run.gauges["node-a"])
    idle = {**lines[1], "time_ns": lines[1]["time_ns"] - 20_000_000_000}
    idle["gpus"] = [{**lines[1]["gpus"][0], "utilization_gpu_percent": 0, "ecc_uncorrected": 0}]
    late = {**lines[-1], "time_ns": lines[-1]["time_ns"] + 20_000_000_000}
    late["gpus"] = [{**lines[-1]["gpus"][0], "xids": [79], "utilization_gpu_percent": 0}]
    run.gauges["node-a"] = (lines[0], idle, *lines[1:], late)
    gpu = gpu_use(run, run.ranks[0])
    assert gpu.readings == 20
    assert gpu.errors.xids == {79: 1}  # an error after the last step is what ended it


def test_errors_from_before_the_run_are_not_its_own(tmp_path):
    ((_, gpu),) = gpu_run(tmp_path, readings={"ecc_uncorrected": 4, "nvlink_errors": {"replay": 9}}).gpus
    assert gpu.errors.uncorrected == 0
    assert gpu.errors.link == {}


def test_what_the_driver_does_not_tell_is_none(tmp_path):
    keys = (
        "utilization_gpu_percent",
        "power_w",
        "throttle_reasons",
        "pcie_gen",
        "ecc_uncorrected",
        "processes",
        "xids",
    )
    ((_, gpu),) = gpu_run(tmp_path, readings=dict.fromkeys(keys)).gpus
    assert gpu.utilization is None
    assert gpu.power_share is None
    assert (gpu.heat, gpu.power, gpu.link, gpu.errors.uncorrected) == (None, None, None, None)
    assert not gpu.strangers


def test_clocks_that_are_cut_are_compared_with_free_ones(tmp_path):
    def hot(number):
        return {"throttle_reasons": ["sw_thermal"], "sm_clock_mhz": 1400} if number % 2 else {"sm_clock_mhz": 1750}

    ((_, gpu),) = gpu_run(tmp_path, readings=hot).gpus
    assert gpu.heat.share == 0.5
    assert gpu.heat.deficit == pytest.approx(0.2)


def test_clocks_that_are_always_cut_are_compared_with_the_cards_highest(tmp_path):
    always = {"throttle_reasons": ["hw_thermal"], "sm_clock_mhz": 990}
    ((_, gpu),) = gpu_run(tmp_path, readings=always).gpus
    assert gpu.heat.deficit == pytest.approx(0.5)


# -- MFU ---------------------------------------------------------------------------------------------


def mfu(tmp_path, **changes):
    return gpu_run(tmp_path, **changes).first.mfu


def test_mfu_by_hand(tmp_path):
    found = mfu(tmp_path)  # 2 TFLOP in a step of 10 ms, on a card of 989 TFLOP/s in bf16
    assert found.value == pytest.approx(2e12 / 0.010 / 989e12, rel=1e-3)
    assert found.number_format == "bf16"
    assert diagnose(gpu_run(tmp_path / "again").run).mfu == found.value


@pytest.mark.parametrize(
    ("meta", "dtype", "kind"),
    [
        ({"autocast": None}, "bfloat16", "bf16"),
        ({"autocast": "float16"}, "float32", "fp16"),
        ({"autocast": None}, "float32", "fp32"),
        ({"autocast": None, "matmul_tf32": True}, "float32", "tf32"),
        ({"autocast": None, "matmul_tf32": True, "capability": "7.5"}, "float32", "fp32"),
        ({"autocast": None}, "float64", None),
    ],
)
def test_the_number_format(tmp_path, meta, dtype, kind):
    optimizers = [{"class": "SGD", "tensors": 1, "parameters": 9, "dtype": dtype, "device": "cuda"}]
    work = window(flops={"matmul": 1e10})
    found = mfu(tmp_path, meta=meta, summary={"optimizers": optimizers}, notes=[work])
    assert found.number_format == kind
    assert (found.value is None) == (kind is None)


def test_convolutions_use_tf32_by_default(tmp_path):
    work = window(flops={"matmul": 1e9, "convolution": 1e11, "attention": 0})
    assert mfu(tmp_path, meta={"autocast": None}, notes=[work]).number_format == "tf32"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"meta": {"device_name": "NVIDIA Unknown 1"}}, "not known to Paceline"),
        ({"meta": {"cuda_graphs": True}}, "CUDA graph"),
        ({"notes": []}, "no step was profiled"),
        ({"notes": [window(uncounted=["compiled code"])]}, "compiled code"),
        ({"notes": [window(flops={"matmul": 0})]}, "no matrix products"),
        ({"notes": [window(flops={"matmul": 1e15})]}, "exceeds the peak"),
        ({"summary": {"optimizers": []}, "meta": {"autocast": None}}, "data type"),
        (
            {"meta": {"device_name": "NVIDIA B200", "autocast": "float8"}, "summary": {"optimizers": []}},
            "data type",
        ),
        ({"meta": {"device": "cpu"}}, "this CPU"),
    ],
)
def test_why_there_is_no_mfu(tmp_path, changes, why):
    facts = gpu_run(tmp_path, **changes)
    assert facts.first.mfu.value is None
    assert why in facts.first.mfu.reason
    assert diagnose(facts.run).unavailable["mfu"] == facts.first.mfu.reason


def test_a_peak_that_was_not_checked_is_said_to_be_so(tmp_path):
    found = mfu(
        tmp_path, meta={"device_name": "NVIDIA A10", "capability": "8.6"}, notes=[window(flops={"matmul": 1e11})]
    )
    assert "not checked against a data sheet" in found.source
    assert "checked" not in mfu(tmp_path / "h200").source


# -- what is said to be missing ------------------------------------------------------------------------


def test_host_times_on_a_gpu_are_said_to_be_so(tmp_path):
    told = diagnose(gpu_run(tmp_path, rows=timed(flags=4)).run).unavailable
    assert "timed on the host" in told["device_times"]
    off = {"device": {"off": "RuntimeError: no events"}}
    told = diagnose(gpu_run(tmp_path / "off", rows=timed(flags=4), summary=off).run).unavailable
    assert "no events" in told["device_times"]
    assert "device_times" not in diagnose(gpu_run(tmp_path / "timed").run).unavailable


def test_a_window_that_failed_says_why(tmp_path):
    told = diagnose(gpu_run(tmp_path, notes=[{"kind": "window", "failed": "RuntimeError: busy"}]).run).unavailable
    assert told["profiler_window"] == "profiling failed (RuntimeError: busy)"


def test_a_cpu_misses_nothing_of_this(tmp_path):
    told = diagnose(RunFolder(tmp_path).rank(plain()).facts().run).unavailable
    assert "device_times" not in told and "communication" not in told


# ----------------------------------------------------------------------------------------------------------------- PCIe


@pytest.mark.parametrize(
    ("generation", "lanes", "gigabytes"),
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (6, 16, 121.0), (3, 4, 3.938)],
)
def test_line_rates_of_the_specification(generation, lanes, gigabytes):
    assert pcie_bytes_per_s(generation, lanes) == pytest.approx(gigabytes * 1e9, rel=1e-3)


@pytest.mark.parametrize(("generation", "lanes"), [(0, 16), (9, 16), (4, 0)])
def test_what_is_not_known_is_none(generation, lanes):
    assert pcie_bytes_per_s(generation, lanes) is None
