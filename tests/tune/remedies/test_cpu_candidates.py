"""What is proposed to a program that computes on a CPU? Threads, and memory in another order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.explain.build import RunFolder, plain
from tests.explain.gpu_run import window

from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import candidates

LARGE = ("aten::addmm", 12, 9000.0, None)
SMALL = ("aten::tanh", 900, 9000.0, None)
CONVOLUTION = ("aten::mkldnn_convolution", 4, 3000.0, None)


def proposed(
    folder, *operators: Any, threads: int = 1, flags: str = "", meta: Any = None, **row: Any
) -> dict[str, Candidate]:
    """What is proposed to a run whose profiled step has some operators, by remedy."""
    run = RunFolder(folder).rank(
        plain(60, **row),
        meta={"threads": threads, **(meta or {})},
        notes=[{"kind": "end", "exception": None}, window(operators)],
    )
    read = run.gauges(header={"allowed_cores": 4.0}).read()
    found = candidates(DiagnosisContext(run=read, recipe={}, cpu_flags=frozenset(flags.split())))
    return {one.remedy: one for one in found}


def test_cores_that_do_not_compute_are_given_threads(tmp_path):
    found = proposed(tmp_path, LARGE)["compute.threads"]
    assert found.recipe == {"compute": {"num_threads": 4}}
    assert (found.safety, found.predicted.low, found.predicted.high) == ("numeric", 1.0, 4.0)


@pytest.mark.parametrize("threads, wait", [(4, 0.0), (1, 40.0)], ids=["as many as cores", "it waits for data"])
def test_threads_stay_where_nothing_speaks_for_more(tmp_path, threads, wait):
    assert "compute.threads" not in proposed(tmp_path, LARGE, threads=threads, wait=wait)


@pytest.mark.parametrize("free_bytes, there", [(1.6e9, True), (1.4e9, False)])
def test_freed_memory_is_kept_where_there_is_enough(tmp_path, free_bytes, there):
    run = RunFolder(tmp_path).rank(plain(60), system=0.5, faults_per_s=500_000)
    read = run.gauges(own_rss_bytes=1e9, memory_available_bytes=free_bytes).read()
    found = [one for one in candidates(DiagnosisContext(run=read, recipe={})) if one.remedy.startswith("memory.retain")]
    assert [one.recipe for one in found] == [{"allocator": {"retain_host_memory": True}}] * there
    kept = DiagnosisContext(run=read, recipe={"allocator": {"retain_host_memory": True}})
    assert "memory.retain_host_memory" not in {one.remedy for one in candidates(kept)}


def test_small_operators_are_computed_by_one_thread(tmp_path):
    found = proposed(tmp_path, SMALL, threads=4)["compute.threads"]
    assert found.recipe == {"compute": {"num_threads": 1}}


def test_memory_is_put_in_another_order_only_for_convolutions(tmp_path):
    assert "compute.channels_last" not in proposed(tmp_path / "none", LARGE)
    assert "compute.channels_last" in proposed(tmp_path / "some", LARGE, CONVOLUTION)
    unknown = RunFolder(tmp_path / "unknown").rank(plain(60)).gauges().read()
    assert "compute.channels_last" in {one.remedy for one in candidates(DiagnosisContext(run=unknown, recipe={}))}


def test_bf16_is_expected_to_speed_up_matrix_work_where_the_processor_multiplies_it(tmp_path):
    large = proposed(tmp_path / "large", LARGE, flags="fma avx512_bf16")["precision.autocast"].predicted
    small = proposed(tmp_path / "small", SMALL, ("aten::mm", 1, 90.0, None), flags="fma avx512_bf16")
    assert large.low == 1.0 and 2.0 < large.high <= 3.0
    assert small["precision.autocast"].predicted.high < 1.02
    assert proposed(tmp_path / "emulated", LARGE, flags="fma avx512f")["precision.autocast"].predicted is None


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_bf16_is_not_proposed_to_a_program_that_computes_in_16_bits_already(tmp_path, kind):
    assert "precision.autocast" not in proposed(tmp_path, LARGE, flags="avx512_bf16", meta={"autocast": kind})


@pytest.mark.parametrize("operator", ["aten::mkldnn_rnn_layer", "aten::lstm", "aten::gru", "aten::mkldnn_convolution"])
def test_recurrent_layers_are_matrix_work_too(tmp_path, operator):
    found = proposed(tmp_path, (operator, 10, 90_000.0, None), SMALL, flags="avx512_bf16")["precision.autocast"]
    assert found.predicted.high > 1.5
