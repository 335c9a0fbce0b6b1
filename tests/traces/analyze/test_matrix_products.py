"""Work of operators by their shapes, held against what torch counts for the same calls."""

from __future__ import annotations

import json

import pytest
from tests.traces.making import gpu, host, launch

from paceline.explain.analysis.captures import roof_of
from paceline.hardware.catalogue import match_gpu
from paceline.traces.analyze.launchers import launchers_in
from paceline.traces.analyze.matrix_products import OperatorCall, is_product, on_tensor_cores, work_of


def counted(torch, run) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def profiled(torch, folder, run) -> list[OperatorCall]:
    """Return the operators of a call as a capture tells them."""
    with torch.profiler.profile(record_shapes=True) as profiler:
        run()
    profiler.export_chrome_trace(str(folder / "capture.json"))
    events = json.loads((folder / "capture.json").read_text())["traceEvents"]
    shaped = [(event["name"], event["args"]) for event in events if event.get("args", {}).get("Input Dims")]
    return [
        OperatorCall(name=name, dims=args["Input Dims"], types=args["Input type"], values=args["Concrete Inputs"])
        for name, args in shaped
    ]


def runs(torch):
    a, b = torch.randn(6, 5), torch.randn(5, 7)
    image, weights = torch.randn(2, 4, 11, 9), torch.randn(6, 2, 3, 3)
    convolve = torch.nn.functional.conv2d
    return {
        "aten::mm": lambda: a @ b,
        "aten::addmm": lambda: torch.addmm(torch.randn(7), a, b),
        "aten::bmm": lambda: torch.bmm(torch.randn(3, 6, 5), torch.randn(3, 5, 7)),
        "aten::baddbmm": lambda: torch.baddbmm(torch.randn(3, 6, 7), torch.randn(3, 6, 5), torch.randn(3, 5, 7)),
        "aten::convolution": lambda: convolve(image, weights, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
    }


@pytest.mark.parametrize("name", ["aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution"])
def test_formulas_count_what_torch_counts(tmp_path, name):
    import torch

    run = runs(torch)[name]
    (call,) = [call for call in profiled(torch, tmp_path, run) if call.name == name]
    work = work_of(call)
    assert work.flops == counted(torch, run) > 0
    assert work.format == "fp32"


def test_a_convolution_backwards_counts_what_torch_counts(tmp_path):
    import torch

    image = torch.randn(2, 4, 11, 9, requires_grad=True)
    weights = torch.randn(6, 4, 3, 3, requires_grad=True)
    out = torch.nn.functional.conv2d(image, weights, stride=2)

    def run():
        out.sum().backward(retain_graph=True)

    (call,) = [call for call in profiled(torch, tmp_path, run) if call.name == "aten::convolution_backward"]
    assert work_of(call).flops == counted(torch, run) > 0


HALF = ["c10::BFloat16"] * 3
SHAPE = [[2, 8, 128, 64], [2, 2, 128, 64], [2, 2, 128, 64]]


def test_attention_by_hand():
    values = ["", "", "", "0.0", "False"]
    name = "aten::_scaled_dot_product_flash_attention"
    whole = work_of(OperatorCall(name=name, dims=SHAPE, types=HALF, values=values))
    assert whole.flops == 2 * 2 * 2 * 8 * 128 * 128 * 64  # two products over eight heads, whatever keys they share
    assert whole.bytes == 2 * (2 * 2 * 8 * 128 * 64 + 2 * 2 * 2 * 128 * 64)
    causal = work_of(OperatorCall(name=name, dims=SHAPE, types=HALF, values=["", "", "", "0.0", "True"]))
    assert causal.flops == whole.flops // 2


def test_bytes_are_moved_once():
    work = work_of(OperatorCall(name="aten::mm", dims=[[6, 5], [5, 7]], types=HALF[:2]))
    assert (work.bytes, work.format) == (2 * (30 + 35 + 42), "bf16")


@pytest.mark.parametrize(
    "call",
    [
        OperatorCall(name="aten::add", dims=[[5], [5]], types=HALF[:2]),
        OperatorCall(name="aten::mm", dims=[], types=[]),
        OperatorCall(name="aten::mm", dims=[[6, 5], [4, 7]], types=HALF[:2]),
        OperatorCall(name="aten::mm", dims=[[6, 5], [5, 7]], types=["long", "long"]),
        OperatorCall(name="aten::convolution", dims=[[1, 3, 8, 8], [4, 3, 3, 3]], types=HALF[:2]),  # stride is not told
    ],
    ids=["no product", "no shapes", "shapes do not fit", "integers", "no stride"],
)
def test_what_is_not_told_is_not_guessed(call):
    assert work_of(call) is None


@pytest.mark.parametrize(
    "name, expected",
    [
        ("volta_sgemm_128x64_nn", False),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("ampere_sgemm_64x64_nn", False),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(P)", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(P)", False),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(P)", True),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x32_MI16x16x1_SN_LDSB1", True),
        ("void implicit_convolve_sgemm<float, float, 1024, 6>(int)", False),
        ("triton_tem_fused_mm_3", None),
    ],
)
def test_names_tell_what_a_kernel_runs_on(name, expected):
    assert is_product(name)
    assert on_tensor_cores(name) is expected


@pytest.mark.parametrize(
    "name",
    [
        "void cudnn::engines_precompiled::nchwToNhwcKernel<__nv_bfloat16, float>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
        "void moe::dev::finalize::finalizeKernelVecLoad<KernelParams<cutlass::bfloat16_t, cutlass::bfloat16_t>>(P)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(P)",
        "void fbgemm_gpu::permute_indices_weights_kernel<false>(int)",
    ],
)
def test_arguments_and_libraries_make_no_product(name):
    assert not is_product(name)


def test_products_of_a_capture_and_their_roof(tmp_path):
    """A product of 4096 in bf16, 137 GFLOP in 200 us on an H100: 687 of 989 TFLOP/s."""
    dims = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": HALF[:2], "Concrete Inputs": ["", ""]}
    events = [host("aten::matmul", 0, 30), host("aten::mm", 1, 20, **dims), launch(5, 1), launch(8, 2)]
    events += [gpu(40, 140, 1, "nvjet_tst_128x128"), gpu(140, 240, 2, "nvjet_splitk")]
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (product,) = launchers_in(path).products
    assert (product.calls, product.total_ns, product.flops) == (1, 200_000, 2 * 4096**3)
    roof = roof_of(product, match_gpu("NVIDIA H100 80GB HBM3"))
    assert roof.bound == "compute"
    assert roof.share == pytest.approx(2 * 4096**3 / 200e-6 / 989e12)


def test_a_product_that_memory_bounds():
    from paceline.traces.analyze.matrix_products import MatrixProduct

    thin = MatrixProduct(name="aten::mm", shapes=[], format="bf16", calls=1, total_ns=1000, flops=2_000, bytes=2_000)
    roof = roof_of(thin, match_gpu("NVIDIA H100 80GB HBM3"))
    assert (roof.bound, roof.flops_per_s) == ("memory", pytest.approx(3.35e12))
    assert roof_of(thin, match_gpu("Tesla V100-SXM2-16GB")) is None  # it has no bf16
