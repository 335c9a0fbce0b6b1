"""Captures as they come: what is read of them, to the nanosecond."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.traces.analyze.ranks import TraceOptions, summaries_of
from paceline.traces.capture import COMMUNICATION, COMPUTE, COPY
from paceline.traces.read import kineto
from paceline.traces.read.content import NotACapture
from paceline.traces.read.event_classes import class_of


def kernel(ts: Any, dur: Any, name: str = "sgemm", cat: str = "kernel", **args: Any) -> dict[str, Any]:
    rest = {"pid": 0, "tid": 7, "args": {"stream": 7, **args}}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **rest}


def written(folder: Path, events: list[dict[str, Any]], name: str = "rank3.json", **top: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **top}))
    return path


@pytest.mark.parametrize(
    "ts, dur, start_ns, end_ns",
    [
        (1694128201435418, 52, 1694128201435418000, 1694128201435470000),
        (1365627863588.761, 57.843, 1365627863588761, 1365627863646604),
        (0.001, 0.002, 1, 3),
        (-12.5, 1.25, -12500, -11250),
        (7905599999999.999, 0.499, 7905599999999999, 7905600000000498),
    ],
    ids=["whole since 1970", "relative", "tiny", "before the base", "a quarter of a year after it"],
)
def test_times_are_exact(tmp_path, ts, dur, start_ns, end_ns):
    events = kineto.read(written(tmp_path, [kernel(ts, dur)])).events
    assert (int(events.start_ns[0]), int(events.end_ns[0])) == (start_ns, end_ns)


def test_decimals_since_1970_are_exact_though_no_double_holds_them(tmp_path):
    path = tmp_path / "one.json"
    event = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1694128201435418.123, "dur": 0.877, "args": {}}'
    path.write_text(f'{{"traceEvents": [{event}]}}')
    events = kineto.read(path).events
    assert (int(events.start_ns[0]), int(events.end_ns[0])) == (1694128201435418123, 1694128201435419000)


def test_one_event_that_is_not_what_it_should_be_takes_nothing_from_the_others(tmp_path):
    events = [kernel(1, 5), kernel(10, 5, correlation="no number"), {**kernel(20, 5, "op", "cpu_op"), "args": [1]}]
    found = kineto.read(written(tmp_path, events))
    assert found.events.end_ns.tolist() == [6000, 15000]
    assert found.events.correlation.tolist()[1] == -1
    assert any("arguments of 1 events" in problem for problem in found.problems)


def test_what_is_gpu_work_goes_by_its_category(tmp_path):
    events = [
        kernel(0, 5),
        kernel(5, 5, "Memcpy HtoD (Pageable -> Device)", "gpu_memcpy"),
        kernel(10, 5, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "Kernel"),
        kernel(15, 5, "Memset (Device)", "Memset"),
        kernel(20, 5, "triton_poi_fused_add_0", "cpu_op"),  # carries a stream, and runs on the host
        kernel(25, 5, "some_kernel", **{"Collective name": "allreduce"}),
        kernel(30, 5, "void multimem_all_reduce_kernel<c10::BFloat16>"),
    ]
    found = kineto.read(written(tmp_path, events)).events
    assert list(found.class_) == [COMPUTE, COPY, COMMUNICATION, COPY, COMMUNICATION, COMMUNICATION]


def test_launches_steps_rank_and_device(tmp_path):
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#12", "ts": 1, "dur": 8, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2, "dur": 1, "args": {"correlation": 5}},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "ts": 2, "id": 5},
        kernel(4, 2, correlation=5, device=1),
    ]
    top = {
        "distributedInfo": {"backend": "nccl", "rank": 6, "world_size": 8},
        "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
    }
    found = kineto.read(written(tmp_path, events, **top))
    assert (found.rank, found.world, found.gpu, found.device) == (6, 8, "B", 1)
    assert [(s.name, s.start_ns, s.end_ns) for s in found.steps] == [("ProfilerStep#12", 1000, 9000)]
    assert list(found.launches.correlation) == [5] == list(found.events.correlation)


def test_a_rank_may_be_in_the_name_or_nowhere(tmp_path):
    assert kineto.read(written(tmp_path, [], "rank3.json")).rank == 3
    assert kineto.read(written(tmp_path, [], "worker.pt.trace.json")).rank is None


def test_a_gzipped_capture_is_the_same(tmp_path):
    plain = written(tmp_path, [kernel(1, 2)])
    packed = tmp_path / "rank3.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(kineto.read(packed).events.start_ns) == list(kineto.read(plain).events.start_ns)


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"hello", "cannot be read as a profiler capture"),
        (b"\x1f\x8bbroken", "is damaged"),
    ],
)
def test_what_is_no_capture_is_said_with_the_file(tmp_path, content, said):
    path = tmp_path / "what.json"
    path.write_bytes(content)
    with pytest.raises(NotACapture, match=said) as caught:
        kineto.read(path)
    assert str(path) in str(caught.value)


def test_each_gpu_of_a_process_is_shown_by_itself(tmp_path):
    """One GPU is always busy, the other one for a tenth of the time; a copy to a third one makes none of it."""
    events = [kernel(100 * k, 100, device=0, correlation=k) for k in range(10)]
    events += [kernel(0, 50, device=1, correlation=20), kernel(950, 50, device=1, correlation=21)]
    events += [{**kernel(10, 5, device=2, correlation=30), "cat": "gpu_memcpy", "name": "Memcpy PtoP"}]
    first, second = summaries_of(written(tmp_path, events), TraceOptions())
    assert [one.breakdown.idle_ns for one in (first, second)] == [0, 900_000]
    assert [one.device for one in (first, second)] == [0, 1]
    assert "kernels ran on 2 GPUs" in first.problems[-1]
    assert second.title.startswith("GPU 1 of ")
    (whole,) = summaries_of(written(tmp_path, events[:10] + events[12:]), TraceOptions())
    assert whole.breakdown.events == 11


def test_the_folder_may_tell_the_rank(tmp_path):
    folder = tmp_path / "rank_12"
    folder.mkdir()
    assert kineto.read(written(folder, [kernel(0, 1)], "trace.json")).rank == 12


def test_devices_that_are_numbered_otherwise_have_the_name_that_all_have(tmp_path):
    """AMD's profiler counts the CPUs, too: of one GPU, torch's 0 is its 2."""
    told = [{"id": 0, "name": "AMD Instinct MI300X VF"}]
    events = [kernel(0, 1, device=2)]
    assert kineto.read(written(tmp_path, events, deviceProperties=told)).gpu == "AMD Instinct MI300X VF"
    mixed = [*told, {"id": 1, "name": "AMD Instinct MI210"}]
    assert kineto.read(written(tmp_path, events, deviceProperties=mixed)).gpu is None


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<int>", COMMUNICATION),
        ("userbuffers_fp16_sum_inplace_gpu_rr", COMMUNICATION),
        ("void deep_ep::internode::dispatch<8>(int)", COMMUNICATION),
        ("triton_red_fused_all_reduce_like_sum", COMPUTE),
        ("void gatherNodeFeatures", COMPUTE),
    ],
)
def test_communication_by_its_name(tmp_path, name, wanted):
    assert kineto.read(written(tmp_path, [kernel(0, 1, name)])).events.class_.tolist() == [wanted]


@pytest.mark.parametrize(
    "name",
    [
        "void dpsk::ep::internode::combine<8, __nv_bfloat16>",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
        "void nvshmem_barrier_all_kernel",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>",
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel<float>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<8>",
        "void mscclpp::allreduce7<float>",
        "ncclDevKernel_Generic_1(ncclDevComm*)",
        "mscclKernel_Sum_half_Simple_false",
        "ccl_allreduce_ring",
    ],
)
def test_communication_by_whatever_library(name):
    assert class_of(name) == COMMUNICATION


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void at::native::vectorized_gather_kernel<16, long>",
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "void cub::DeviceReduceSingleTileKernel",
        "void moe::dev::finalize::finalizeKernelVecLoad",
        "void at::native::index_reduce_func_kernel",
        "void node_features_kernel",
        "triton_per_fused_sum_reduce_scatter_add_0_like",
    ],
)
def test_computing_with_a_name_like_it(name):
    assert class_of(name) == COMPUTE
