"""Each finding about a GPU, just below and just above its threshold, with made-up readings."""

from __future__ import annotations

import pytest
from tests.explain.build import RunFolder, loader, plain
from tests.explain.gpu_run import GIB, OPTIMIZER, gpu_run, timed, window
from tests.explain.test_rules import found, remedies

from paceline.explain.diagnose import diagnose

GPU_CODES = {"COMP003", "COMP004", "COMP005", "COMP007", "GPU001", "GPU002", "GPU003", "GPU004", "GPU005", "MEM003"}


def on_gpu(tmp_path, rows=None, **changes):
    return found(gpu_run(tmp_path, rows, **changes))


def some(share, **changes):
    """Readings of which this share differs."""
    return lambda number: changes if number < share * 20 else {}


def test_a_healthy_gpu_has_nothing_but_health(tmp_path):
    assert set(on_gpu(tmp_path)) == {"COMP001"}
    assert diagnose(gpu_run(tmp_path / "b").run).verdict == "compute-bound"


def test_a_cpu_run_beside_a_hot_shared_and_broken_gpu(tmp_path):
    """Whatever else the host has: a run on the CPU gets no finding about a GPU."""
    bad = {
        "throttle_reasons": ["sw_thermal", "power_cap"],
        "sm_clock_mhz": 500,
        "pcie_gen": 1,
        "xids": [79],
        "processes": [{"pid": 5, "memory_bytes": GIB, "own": False}],
        "power_w": 60.0,
    }
    syncs = {
        "syncs": [{"slot": "mid", "function": "f (a.py:1)", "text": "x.item()", "count": 90}],
        "samples": [{"slot": "mid", "side": "", "count": 100}],
    }
    analysis = gpu_run(
        tmp_path, timed(transfer=5), meta={"device": "cpu"}, readings=bad, memory=(139, 139, 9), summary=syncs
    )
    assert not GPU_CODES & set(found(analysis))
    assert not {"XFER001", "MEM001"} & set(found(analysis))


def test_a_cpu_run_alone(tmp_path):
    assert not GPU_CODES & set(found(RunFolder(tmp_path).rank(plain(transfer=5)).gauges().facts()))


# -- the card ----------------------------------------------------------------------------------------

HOT = {"throttle_reasons": ["sw_thermal"], "sm_clock_mhz": 1400, "temperature_c": 88}


@pytest.mark.parametrize(("share", "there"), [(0.05, False), (0.1, True), (1.0, True)])
def test_gpu001_thermal_throttling(tmp_path, share, there):
    """One reading in twenty is a blip, though it is 5% of them."""
    assert ("GPU001" in on_gpu(tmp_path, readings=some(share, **HOT))) == there


def test_gpu001_loses_what_the_clock_loses(tmp_path):
    finding = on_gpu(tmp_path, readings=some(0.5, **HOT))["GPU001"]
    assert finding.time_share == pytest.approx(0.5 * (1 - 1400 / 1980) * 0.99, rel=0.01)
    assert finding.severity == "critical"
    assert any("88 °C" in e.text for e in finding.evidence)


def test_gpu001_does_not_look_at_an_idle_gpu(tmp_path):
    assert "GPU001" not in on_gpu(tmp_path, readings={**HOT, "utilization_gpu_percent": 10})


CAPPED = {"throttle_reasons": ["power_cap"], "sm_clock_mhz": 1700, "power_w": 698.0}


def test_gpu002_power_capped_at_the_default_limit_is_only_told(tmp_path):
    finding = on_gpu(tmp_path, readings=CAPPED)["GPU002"]
    assert (finding.severity, finding.gain) == ("info", None)
    assert remedies(finding) == []  # it computes in bf16 already
    assert diagnose(gpu_run(tmp_path / "b", readings=CAPPED).run).verdict == "compute-bound"
    plain = on_gpu(tmp_path / "c", readings=CAPPED, meta={"autocast": None})["GPU002"]
    assert remedies(plain) == ["precision.autocast"]


def test_gpu002_power_capped_by_a_limit_that_was_lowered(tmp_path):
    finding = on_gpu(tmp_path, readings={**CAPPED, "power_limit_w": 500.0})["GPU002"]
    assert finding.severity == "warning"
    assert finding.remedies[0].change == "nvidia-smi -i 0 -pl 700"
    assert finding.gain.high == pytest.approx(1 / (1 - (1 - 1700 / 1980) * 0.99), rel=0.01)


def test_gpu002_a_power_brake(tmp_path):
    finding = on_gpu(tmp_path, readings={**CAPPED, "throttle_reasons": ["hw_power_brake"]})["GPU002"]
    assert finding.severity == "warning"
    assert remedies(finding) == ["gpu.power_supply"]


@pytest.mark.parametrize("clock", [1900, 1980])
def test_gpu002_is_not_made_of_a_cap_that_costs_less_than_5_percent(tmp_path, clock):
    assert "GPU002" not in on_gpu(tmp_path, readings={**CAPPED, "sm_clock_mhz": clock})


@pytest.mark.parametrize(
    ("reading", "card", "there"),
    [
        ({}, {}, False),
        ({"pcie_width": 8}, {}, True),
        ({"pcie_gen": 3}, {}, True),
        ({"pcie_gen": 4}, {"pcie_max_gen": 4}, True),  # the card could do 5: the slot holds it back
        ({"pcie_gen": 4}, {"pcie_max_gen": 4, "pcie_card_max_gen": 4}, False),
        ({"pcie_width": 8}, {"pcie_max_width": 8}, False),
        ({"pcie_gen": None}, {}, False),
    ],
)
def test_gpu003_pcie_degraded(tmp_path, reading, card, there):
    assert ("GPU003" in on_gpu(tmp_path, readings=reading, card=card)) == there


def test_gpu003_an_idle_gpu_lowers_its_link(tmp_path):
    idle = {"pcie_gen": 1, "utilization_gpu_percent": 3}
    assert "GPU003" not in on_gpu(tmp_path, readings=idle)
    assert "GPU003" not in on_gpu(tmp_path / "some", readings=some(0.9, **idle))


def test_gpu003_promises_a_part_of_the_copies(tmp_path):
    finding = on_gpu(tmp_path, timed(transfer=2.5), readings={"pcie_width": 8})["GPU003"]
    assert finding.severity == "warning"
    assert finding.gain.high == pytest.approx(1 / (1 - 0.2 * 0.5), rel=0.01)
    assert "PCIe 5.0 x8" in finding.summary
    assert on_gpu(tmp_path / "no", readings={"pcie_width": 8})["GPU003"].gain is None


@pytest.mark.parametrize(
    ("reading", "severity"),
    [
        ({"xids": [79]}, "critical"),
        ({"xids": [13]}, "warning"),
        ({"xids": [13, 48]}, "critical"),
        ({"xids": [9999]}, "critical"),
    ],
)
def test_gpu004_xids(tmp_path, reading, severity):
    finding = on_gpu(tmp_path, readings=lambda n: reading if n == 10 else {})["GPU004"]
    assert finding.severity == severity
    assert finding.evidence[0].value == 1


def test_gpu004_memory_errors(tmp_path):
    rising = {"ecc_uncorrected": lambda n: int(n > 10), "ecc_corrected": lambda n: n}
    finding = on_gpu(tmp_path, readings=lambda n: {key: of(n) for key, of in rising.items()})["GPU004"]
    assert [e.text.partition(" during")[0] for e in finding.evidence] == [
        "1 uncorrectable memory errors",
        "19 corrected memory errors",
    ]


def test_gpu004_corrected_errors_alone_are_none(tmp_path):
    assert "GPU004" not in on_gpu(tmp_path, readings=lambda n: {"ecc_corrected": n})
    assert "GPU004" not in on_gpu(tmp_path / "old", readings={"ecc_uncorrected": 3})


def test_gpu004_is_said_of_a_short_run_too(tmp_path):
    analysis = gpu_run(tmp_path, timed(5), readings={"xids": [79]})
    assert not analysis.enough
    assert [f.code for f in diagnose(analysis.run).findings] == ["GPU004"]


def of_stranger(own, memory=8 * GIB):
    return {
        "processes": [{"pid": 1000, "memory_bytes": GIB, "own": True}, {"pid": 77, "memory_bytes": memory, "own": own}]
    }


@pytest.mark.parametrize(("own", "there"), [(False, True), (None, False), (True, False)])
def test_gpu005_gpu_shared(tmp_path, own, there):
    """Where it cannot be told whose a process is, nobody is called a stranger."""
    assert ("GPU005" in on_gpu(tmp_path, readings=of_stranger(own))) == there


def test_gpu005_somebody_who_only_looked(tmp_path):
    assert "GPU005" not in on_gpu(tmp_path, readings=some(0.05, **of_stranger(False)))
    finding = on_gpu(tmp_path / "b", readings=some(0.5, **of_stranger(False, None)))["GPU005"]
    assert "process 77" in finding.summary
    assert finding.evidence[0].value is None


# -- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "severity"),
    [
        ((120, 130, 0), None),
        ((126, 130, 0), "info"),
        ((136, 139, 0), "warning"),
        ((120, 139, 3), "warning"),
    ],
)
def test_mem001_of_a_gpu(tmp_path, memory, severity):
    finding = on_gpu(tmp_path, memory=memory).get("MEM001")
    assert (finding.severity if finding else None) == severity


def test_mem001_a_well_filled_gpu_is_still_healthy(tmp_path):
    assert diagnose(gpu_run(tmp_path, memory=(128, 130, 0)).run).verdict == "compute-bound"


@pytest.mark.parametrize(
    ("rss", "available", "there"), [(15e9, 0.5e9, True), (15e9, 6e9, False), (14e9, 0.5e9, False), (15e9, None, True)]
)
def test_mem001_of_the_host(tmp_path, rss, available, there):
    run = RunFolder(tmp_path).rank(plain())
    run.gauges(header={"memory_limit_bytes": 16e9}, own_rss_bytes=rss, memory_available_bytes=available)
    assert ("MEM001" in found(run.facts())) == there


@pytest.mark.parametrize(
    ("memory", "severity"),
    [
        ((60, 70, 0), None),
        ((10, 20, 0), None),  # twice, but too little to matter
        ((60, 100, 0), "info"),
        ((60, 130, 0), "warning"),
        ((60, 100, 1), "warning"),
    ],
)
def test_mem003_memory_fragmented(tmp_path, memory, severity):
    finding = on_gpu(tmp_path, memory=memory).get("MEM003")
    assert (finding.severity if finding else None) == severity


# -- copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("copies", "there"), [(0.5, False), (0.6, True)])
def test_xfer001_transfer_blocking(tmp_path, copies, there):
    assert ("XFER001" in on_gpu(tmp_path, timed(transfer=copies))) == there


def test_xfer001_does_not_propose_to_prefetch_where_the_program_does(tmp_path):
    copies = {"count": 412, "timed": 80, "timed_s": 0.4, "off": None}
    finding = on_gpu(tmp_path, timed(transfer=3), summary={"device": {"overlapped_copies": copies}})["XFER001"]
    assert "412 copies run on a separate CUDA stream, 5.00 ms each (80 timed)" in [e.text for e in finding.evidence]
    assert "loader.device_prefetch" not in {remedy.id for remedy in finding.remedies}


@pytest.mark.parametrize(
    ("pinned", "first"), [(False, "loader.pin_memory"), (True, "loader.device_prefetch"), (None, "loader.pin_memory")]
)
def test_xfer001_looks_at_the_loader(tmp_path, pinned, first):
    from tests.explain.build import meter

    one = loader(num_workers=0, pin_memory=pinned, meter=meter(200, 0.00005, 0.00005))
    finding = on_gpu(tmp_path, timed(transfer=3), summary={"loaders": [one]})["XFER001"]
    assert remedies(finding)[0] == first
    assert any("pin_memory" in e.text for e in finding.evidence) == (pinned is not None)


# -- computing ---------------------------------------------------------------------------------------


def waiting(count, total=200, slot="mid"):
    return {
        "syncs": [{"slot": slot, "function": "train (train.py:9)", "text": "total += loss.item()", "count": count}],
        "samples": [
            {"slot": "startup", "side": "", "count": 500},
            {"slot": "forward", "side": "", "count": total - count},
            {"slot": slot, "side": "", "count": count},
        ],
    }


@pytest.mark.parametrize(
    ("count", "utilization", "there"),
    [(40, 70, True), (40, 98, False), (9, 70, False), (40, None, True), (7, 70, False)],
)
def test_comp003_sync_stall(tmp_path, count, utilization, there):
    """Waiting is harmless while the GPU has work."""
    total = 50 if count == 7 else 200
    got = on_gpu(tmp_path, readings={"utilization_gpu_percent": utilization}, summary=waiting(count, total))
    assert ("COMP003" in got) == there


def test_comp003_names_the_line_and_bounds_the_loss(tmp_path):
    finding = on_gpu(tmp_path, readings={"utilization_gpu_percent": 90}, summary=waiting(60))["COMP003"]
    assert finding.time_share == pytest.approx(0.1 - 0.005, abs=1e-6)  # the GPU idles 10%, of which data takes 0.5%
    assert any("total += loss.item()" in e.text for e in finding.evidence)
    assert remedies(finding) == ["sync.less_often", "sync.non_blocking"]


def test_comp003_without_a_reading_promises_nothing(tmp_path):
    finding = on_gpu(tmp_path, readings={"utilization_gpu_percent": None}, summary=waiting(60))["COMP003"]
    assert (finding.severity, finding.gain, finding.time_share) == ("info", None, None)


def test_comp003_waiting_for_data_is_another_finding(tmp_path):
    got = on_gpu(tmp_path, readings={"utilization_gpu_percent": 60}, summary=waiting(60, slot="data_wait"))
    assert "COMP003" not in got


FP32 = {"autocast": None}


@pytest.mark.parametrize(
    ("meta", "there"),
    [
        ({}, False),
        (FP32, True),
        ({**FP32, "matmul_tf32": True}, False),
        ({**FP32, "capability": "6.0", "device_name": "Tesla P100-SXM2-16GB"}, False),
        ({**FP32, "capability": "7.5", "device_name": "Tesla T4"}, True),
        ({**FP32, "device_name": "NVIDIA Unknown"}, True),
    ],
)
def test_comp004_precision_unused(tmp_path, meta, there):
    assert ("COMP004" in on_gpu(tmp_path, meta=meta)) == there


def test_comp004_of_a_bf16_model(tmp_path):
    optimizers = [OPTIMIZER | {"dtype": "bfloat16"}]
    assert "COMP004" not in on_gpu(tmp_path, meta=FP32, summary={"optimizers": optimizers})


def test_comp004_measured_by_operators(tmp_path):
    finding = on_gpu(tmp_path, meta=FP32)["COMP004"]
    assert finding.time_share == pytest.approx(6000 / 6500 * 0.99, rel=1e-3)
    most = 1 - 67 / 989
    assert finding.gain.high == pytest.approx(1 / (1 - finding.time_share * most), rel=1e-6)
    assert remedies(finding) == ["precision.autocast", "precision.tf32"]
    old = on_gpu(tmp_path / "t4", meta={**FP32, "capability": "7.5", "device_name": "Tesla T4"})["COMP004"]
    assert remedies(old) == ["precision.fp16"]


@pytest.mark.parametrize(("flops", "there"), [(1e11, True), (5e10, False)])
def test_comp004_at_least_by_operations(tmp_path, flops, there):
    """Without the device's times: 0.1 TFLOP take at least 1.5 ms of a step of 10 ms at 67 TFLOP/s."""
    note = window([("aten::mm", 300, 1500, None)], flops={"matmul": flops})
    assert ("COMP004" in on_gpu(tmp_path, meta=FP32, notes=[note])) == there


def test_comp004_without_a_window_says_nothing(tmp_path):
    assert "COMP004" not in on_gpu(tmp_path, meta=FP32, notes=[])


def product(n, count=10):
    return {"batch": 1, "m": 4096, "n": n, "k": 1024, "count": count}


def flops_of(*products):
    return {"matmul": sum(2 * p["m"] * p["n"] * p["k"] * p["count"] for p in products)}


@pytest.mark.parametrize(
    ("width", "kind", "there"),
    [
        (50257, "bfloat16", True),
        (50304, "bfloat16", False),
        (50260, "bfloat16", True),
        (50260, "tf32", False),
        (50257, "fp32", False),
    ],
)
def test_comp005_shapes_misaligned(tmp_path, width, kind, there):
    meta = {"autocast": kind if kind == "bfloat16" else None, "matmul_tf32": kind == "tf32"}
    products = [product(width, 1), product(4096, 10)]
    note = window(products=products, flops=flops_of(*products))
    got = on_gpu(tmp_path, meta=meta, notes=[note])
    assert ("COMP005" in got) == there
    if there:
        assert f"{width:,}" in got["COMP005"].remedies[0].change


def test_comp005_a_small_odd_layer_does_not_matter(tmp_path):
    products = [product(10, 1), product(4096, 10)]
    assert "COMP005" not in on_gpu(tmp_path, notes=[window(products=products, flops=flops_of(*products))])


@pytest.mark.parametrize(
    ("reading", "memory", "there"),
    [
        ({"utilization_gpu_percent": 40}, 30, True),
        ({"power_w": 300.0}, 30, True),
        ({"power_w": 300.0}, 90, False),
        ({}, 30, False),
        ({"utilization_gpu_percent": 40, "power_w": None}, 30, True),
    ],
)
def test_comp007_device_underfilled(tmp_path, reading, memory, there):
    assert ("COMP007" in on_gpu(tmp_path, readings=reading, memory=(memory, memory, 0))) == there


def test_comp007_not_while_data_is_missing(tmp_path):
    starved = on_gpu(tmp_path, timed(data_wait=8), readings={"utilization_gpu_percent": 40}, memory=(30, 30, 0))
    assert "COMP007" not in starved


def test_comp007_doubles_the_batch(tmp_path):
    finding = on_gpu(tmp_path, readings={"power_w": 200.0}, memory=(30, 30, 0))["COMP007"]
    assert finding.remedies[0].change == "use a batch size of 16 instead of 8"
    assert (finding.gain.low, finding.gain.high) == (1.0, 2.0)


def lagging(forward, backward, count=50):
    return {"device": {"lag_s": {"forward": forward, "backward": backward, "optimizer": 0.0}, "lag_count": count}}


@pytest.mark.parametrize(
    ("lags", "there"),
    [
        (lagging(0.0, 0.0001), True),
        (lagging(0.0, 0.004), False),
        (lagging(0.001, 0.0), False),
        (lagging(0.0, 0.0, count=5), False),
        ({}, False),
    ],
)
def test_comp002_on_a_gpu_is_decided_by_how_far_it_is_behind(tmp_path, lags, there):
    """A busy transformer has as many operators: the host's time in them says nothing."""
    assert ("COMP002" in on_gpu(tmp_path, summary=lags)) == there


@pytest.mark.parametrize(("device", "there"), [(9000.0, True), (None, False), (500.0, False)])
def test_comp006_on_a_gpu_goes_by_the_devices_times(tmp_path, device, there):
    operators = [("aten::gelu", 100, 9000, device), ("aten::mm", 100, 700, None if device is None else 3000)]
    assert ("COMP006" in on_gpu(tmp_path, notes=[window(operators)])) == there


def test_comp001_needs_a_gpu_that_works(tmp_path):
    assert "COMP001" not in on_gpu(tmp_path, readings={"utilization_gpu_percent": 60})
    finding = on_gpu(tmp_path / "b")["COMP001"]
    assert any(e.unit == "MFU" and "H200-SXM" in e.text for e in finding.evidence)


def test_backward_is_not_communication_on_a_gpu(tmp_path):
    """Torch runs a backward on CUDA in a thread of its own: the training thread is off the CPU all the while."""
    analysis = gpu_run(tmp_path, timed(backward_blocked=6), meta={"distributed": True, "world": 1})
    assert analysis.shares["communication"] == 0
    assert "communication" in diagnose(analysis.run).unavailable
