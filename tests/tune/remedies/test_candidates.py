"""What is proposed in which situation? Runs written by hand, on a CPU, on a GPU, on several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.explain.build import RunFolder, loader, meter, plain, training
from tests.explain.gpu_run import OPTIMIZER, gpu_run, timed, window

from paceline.core.recipe import Recipe, check_recipe
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import candidates

FP32 = {"autocast": None, "matmul_tf32": False}
FED = {"loaders": [loader(num_workers=0, pin_memory=False, meter=meter(200, 0.00005, 0.00005))]}
LAUNCH_BOUND = {"device": {"lag_count": 20, "lag_s": {"forward": 0.0, "backward": 0.0}}}


def proposed(facts: RunAnalysis, recipe: Recipe | None = None) -> dict[str, Candidate]:
    """What is proposed, by its settings: ``ddp.bucket_cap_mb=100``."""
    found = candidates(DiagnosisContext(run=facts.run, recipe=recipe or {}))
    for candidate in found:
        check_recipe(candidate.recipe, candidate.remedy)
    return {
        " ".join(f"{table}.{key}={value}" for table, keys in c.recipe.items() for key, value in keys.items()): c
        for c in found
    }


def on_cpu(tmp_path, **summary: Any) -> RunAnalysis:
    return RunFolder(tmp_path).rank(plain(60, optimizer=5), summary=summary).gauges().facts()


def on_ranks(tmp_path, count: int = 2, meta: Mapping[str, Any] | None = None, **row: Any) -> RunAnalysis:
    folder = RunFolder(tmp_path)
    exchanges = training(exchanges=row.get("synced", 1))
    for number in range(count):
        about = {"world": count, "distributed": True, **(meta or {})}
        folder.rank(plain(60, **row), number, meta=about, summary={"training": exchanges})
    return folder.gauges().facts()


def test_on_a_cpu_nothing_is_proposed_that_only_a_gpu_has(tmp_path):
    keys = "".join(proposed(on_cpu(tmp_path), {"compute": {"compile": "default"}}))
    for key in ("tf32", "fp16", "cudnn", "sdpa", "reduce", "8bit", "segments", "pin_memory", "device_prefetch", "ddp"):
        assert key not in keys


def test_a_gpu_that_multiplies_in_fp32_may_use_faster_formats(tmp_path):
    new = proposed(gpu_run(tmp_path, meta=FP32))
    assert {"precision.tf32=True", "precision.autocast=bf16"} <= set(new)
    assert "precision.autocast=fp16" not in new
    assert new["precision.tf32=True"].safety == "numeric"
    assert new["precision.tf32=True"].predicted.high > 1.5
    old = proposed(gpu_run(tmp_path / "t4", meta={**FP32, "capability": "7.5", "device_name": "Tesla T4"}))
    assert "precision.autocast=fp16" in old
    assert not {"precision.tf32=True", "precision.autocast=bf16"} & set(old)
    assert "precision.tf32=True" not in proposed(gpu_run(tmp_path / "bf16"))


def test_copies_to_the_device_are_pinned_or_made_ahead(tmp_path):
    found = proposed(gpu_run(tmp_path, timed(transfer=3), summary=FED))
    pin, ahead = found["loader.pin_memory=True"], found["loader.pin_memory=True loader.device_prefetch=True"]
    assert (pin.safety, ahead.safety) == ("exact", "exact")
    drawn = meter(200, 0.00005, 0.00005, draws_random=True)
    random = {"loaders": [loader(num_workers=0, pin_memory=True, meter=drawn)]}
    found = proposed(gpu_run(tmp_path / "b", timed(transfer=3), summary=random))
    assert "loader.pin_memory=True" not in found
    assert found["loader.pin_memory=True loader.device_prefetch=True"].safety == "resampled"


@pytest.mark.parametrize(
    "running, autocast, wanted",
    [
        ("_flash_attention_forward", "bfloat16", {"cudnn", "efficient"}),
        ("_efficient_attention_forward", "bfloat16", {"cudnn", "flash"}),
        ("_scaled_dot_product_attention_math", None, {"efficient"}),
    ],
)
def test_other_attention_is_proposed_where_it_takes_time(tmp_path, running, autocast, wanted):
    notes = [window([(f"aten::{running}", 24, 500, 3000), ("aten::mm", 300, 1500, 3000)])]
    facts = gpu_run(tmp_path, notes=notes, meta={"autocast": autocast})
    found = {key.partition("=")[2] for key in proposed(facts) if key.startswith("compute.sdpa")}
    assert found == wanted
    assert not any("sdpa" in key for key in proposed(facts, {"compute": {"sdpa_backend": "cudnn"}}))
    assert not any("sdpa" in key for key in proposed(gpu_run(tmp_path / "no attention")))


def test_convolutions_are_measured_where_shapes_are_steady(tmp_path):
    notes = [window([("aten::cudnn_convolution", 24, 500, 3000), ("aten::mm", 300, 1500, 3000)])]
    found = proposed(gpu_run(tmp_path, notes=notes))["compute.cudnn_benchmark=True"]
    assert 1.1 < found.predicted.high < 1.5
    assert "compute.cudnn_benchmark=True" not in proposed(gpu_run(tmp_path / "none"))


def test_further_modes_of_compiling_follow_the_first_one_where_the_gpu_still_waits(tmp_path):
    waits = gpu_run(tmp_path, summary=LAUNCH_BOUND)
    assert {k for k in proposed(waits) if "compile" in k} == {"compute.compile=default"}
    modes = {k for k in proposed(waits, {"compute": {"compile": "default"}}) if "compile" in k}
    assert modes == {"compute.compile=reduce-overhead", "compute.compile=max-autotune"}
    assert not any("compile" in k for k in proposed(waits, {"compute": {"compile": "reduce-overhead"}}))
    busy = gpu_run(tmp_path / "busy")
    assert not any("compile" in k for k in proposed(busy, {"compute": {"compile": "default"}}))


def test_torn_memory_is_taken_in_segments_that_grow(tmp_path):
    found = proposed(gpu_run(tmp_path, memory=(60.0, 130.0, 0)))
    assert found["allocator.expandable_segments=True"].safety == "exact"
    assert "allocator.expandable_segments=True" not in proposed(gpu_run(tmp_path / "b"))


def test_state_in_8_bit_is_for_adam_on_a_gpu_and_for_memory(tmp_path):
    found = proposed(gpu_run(tmp_path))["optimizer.state_8bit=True"]
    assert (found.safety, list(found.aims)) == ("semantic", ["memory"])
    sgd = gpu_run(tmp_path / "sgd", summary={"optimizers": [OPTIMIZER | {"class": "SGD", "dtype": "float32"}]})
    assert "optimizer.state_8bit=True" not in proposed(sgd)


def test_foreach_is_for_optimizers_that_run_tensor_by_tensor(tmp_path):
    plain_one = {"fused": None, "foreach": None, "tensors": 300, "parameters": 10**7, "device": "cpu"}
    rms = on_cpu(tmp_path, optimizers=[plain_one | {"class": "RMSprop"}])
    assert "optimizer.foreach=True" in proposed(rms)
    assert not any(key.startswith("optimizer.") for key in proposed(rms, {"optimizer": {"foreach": True}}))
    adam = list(proposed(on_cpu(tmp_path / "adam", optimizers=[plain_one | {"class": "Adam"}])))
    assert adam.index("optimizer.fused=True") < adam.index("optimizer.foreach=True")
    for number, given in enumerate(({"fused": True}, {"fused": False}, {"foreach": False})):  # the program said so
        chosen = on_cpu(tmp_path / f"chosen-{number}", optimizers=[plain_one | {"class": "Adam"} | given])
        assert not any(key.startswith("optimizer.fused") for key in proposed(chosen))


def test_exposed_communication_is_cut_otherwise_and_compressed(tmp_path):
    slow = on_ranks(tmp_path, communication=5, synced=1)
    found = proposed(slow)
    assert {key: c.safety for key, c in found.items() if key.startswith("ddp.")} == {
        "ddp.bucket_cap_mb=100": "numeric",
        "ddp.bucket_cap_mb=6": "numeric",
        "ddp.comm_hook=fp16": "numeric",
        "ddp.static_graph=True": "numeric",
        "ddp.gradient_as_bucket_view=True": "exact",
    }
    for now, further in ((100, {400}), (6, {1}), (1600, set()), (1, set())):
        sizes = {key for key in proposed(slow, {"ddp": {"bucket_cap_mb": now}}) if "bucket_cap" in key}
        assert sizes == {f"ddp.bucket_cap_mb={size}" for size in further}


def test_on_gpus_gradients_are_sent_in_bf16_or_as_low_rank(tmp_path):
    gpu = {"device": "cuda", "capability": "9.0"}
    found = proposed(on_ranks(tmp_path, meta=gpu, communication=5, synced=1))
    assert found["ddp.comm_hook=bf16"].safety == "numeric"
    assert found["ddp.comm_hook=powersgd"].safety == "semantic"
    assert found["ddp.comm_hook=powersgd"].warmup_steps == 10


def test_micro_steps_that_all_exchange_need_only_one(tmp_path):
    often = on_ranks(tmp_path, communication=5, synced=3, micro_steps=3)
    found = proposed(often)["ddp.no_sync=True"]
    assert found.safety == "numeric"
    assert found.predicted.high > 1.2
    assert "ddp.no_sync=True" not in proposed(often, {"ddp": {"no_sync": True}})


@pytest.mark.parametrize("count, synced", [(1, 0), (2, 0)], ids=["one rank", "no DistributedDataParallel"])
def test_nothing_is_proposed_of_exchanges_that_there_are_not(tmp_path, count, synced):
    assert not any(
        key.startswith("ddp.") for key in proposed(on_ranks(tmp_path, count, communication=5, synced=synced))
    )


def test_debug_settings_that_are_on_are_turned_off(tmp_path):
    debug = ["anomaly_detection", "launch_blocking", "deterministic_algorithms"]
    found = proposed(gpu_run(tmp_path, meta={"debug": debug}))
    assert found["debug.anomaly_detection=False"].safety == "exact"
    assert found["debug.anomaly_detection=False"].predicted.high == 6.6
    assert found["debug.launch_blocking=False"].safety == "exact"
    assert found["debug.deterministic_algorithms=False"].safety == "numeric"
    off = {"debug": {"anomaly_detection": False}}
    assert "debug.anomaly_detection=False" not in proposed(gpu_run(tmp_path / "off", meta={"debug": debug}), off)
    assert not [key for key in proposed(on_cpu(tmp_path / "cpu")) if key.startswith("debug.")]
    on_a_cpu = RunFolder(tmp_path / "on").rank(plain(60), meta={"debug": debug}).gauges().facts()
    assert [key for key in proposed(on_a_cpu) if key.startswith("debug.")] == ["debug.anomaly_detection=False"]


@pytest.mark.parametrize(
    "timed, is_proposed",
    [
        ({"searches_unused": True, "unused_count": 0}, True),
        ({"searches_unused": True, "unused_count": 3}, False),
        ({"searches_unused": False, "unused_count": 0}, False),
        ({}, False),  # an earlier record
    ],
)
def test_the_search_for_unused_parameters_is_left_out_where_there_are_none(tmp_path, timed, is_proposed):
    entry = {"count": 9, "backward_s": 0.004, "exchange_s": 0.003, "exposed_s": 0.001, **timed}
    folder = RunFolder(tmp_path)
    for number in range(2):
        about = {"world": 2, "distributed": True}
        summary = {"training": training(exchanges=1), "exchange_times": [entry]}
        folder.rank(plain(60, synced=1), number, meta=about, summary=summary)
    found = proposed(folder.gauges().facts())
    assert ("ddp.find_unused_parameters=False" in found) == is_proposed
