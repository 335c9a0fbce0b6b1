"""Model FLOP utilization: the share of the GPU's peak rate that training uses, and the number format of its products.

    MFU = FLOPs of a step / (seconds of a step * peak FLOP/s of the format used)

(PaLM, arXiv 2204.02311, appendix B.) The FLOPs are those of the matrix products in one profiled step. The peak rate is
the vendor's dense figure from `hardware.catalogue`. Computations that the program repeats (activation checkpointing)
count twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.explain.analysis.breakdown import profiled_part
from paceline.explain.analysis.profiler_window import ProfilerWindow
from paceline.hardware.catalogue import Gpu, match_gpu
from paceline.record.run import JsonObject, Rank

_SHORT = {"bfloat16": "bf16", "float16": "fp16"}
_WHOLE = 0.9  # least share of step time in the profiled models for which they represent all models
_TF32_FROM = 8.0  # least compute capability for TF32


@dataclass(frozen=True, kw_only=True)
class Mfu:
    """Model FLOP utilization, or the reason why it is unknown."""

    value: float | None
    reason: str = ""  # why the value is unknown
    flops_per_step: float | None = None
    peak_flops: float | None = None
    number_format: str | None = None
    gpu: Gpu | None = None

    @property
    def source(self) -> str:
        """The peak rate and its source, as text."""
        if self.gpu is None:
            return ""
        doubt = "" if self.gpu.verified == "repo" else " (not checked against a data sheet)"
        return f"{(self.peak_flops or 0) / 1e12:,.0f} TFLOP/s of the {self.gpu.name} in {self.number_format}{doubt}"


def capability(meta: JsonObject) -> float:
    """Return the compute capability of a rank's GPU, or 0.0 without a GPU."""
    try:
        return float(meta.get("capability") or 0.0)
    except ValueError:
        return 0.0


def number_format(rank: Rank, window: ProfilerWindow | None = None) -> str | None:
    """Return the number format of matrix products (bf16, fp16, tf32 or fp32), or None if unknown."""
    told = _SHORT.get(str(rank.meta.get("autocast")))
    if told:
        return told
    optimizers = rank.summary.get("optimizers") or ()
    biggest = max(optimizers, key=lambda o: o.get("parameters") or 0, default=None)
    kind = str(biggest.get("dtype")) if biggest else ""
    if kind != "float32":
        return _SHORT.get(kind)
    return "tf32" if _uses_tf32(rank, window) else "fp32"


def computes_in_16_bits(rank: Rank) -> bool:
    """Return whether matrix products are known to be in bf16 or fp16."""
    return number_format(rank) in _SHORT.values()


def _uses_tf32(rank: Rank, window: ProfilerWindow | None) -> bool:
    if capability(rank.meta) < _TF32_FROM:
        return False
    if rank.meta.get("matmul_tf32"):
        return True
    work = window.matrix_work if window else None
    convolves = work is not None and work.flops.get("convolution", 0) > 0.5 * sum(work.flops.values())
    return bool(convolves and rank.meta.get("convolution_tf32"))


def mfu_of(rank: Rank, window: ProfilerWindow | None, step_s: float) -> Mfu:
    """Return the MFU of a rank, from its profiled step and the median of its step times."""
    gpu = match_gpu(str(rank.meta.get("device_name") or ""))
    kind = number_format(rank, window)
    flops = window.flops_per_step if window else None
    reason = _why_not(rank, window, gpu, kind)
    if reason or gpu is None or kind is None or not flops or step_s <= 0:
        return Mfu(value=None, reason=reason or "no step was timed", flops_per_step=flops, number_format=kind, gpu=gpu)
    peak = gpu.peak_flops[kind]
    value = flops / (step_s * peak)
    found = Mfu(value=value, flops_per_step=flops, peak_flops=peak, number_format=kind, gpu=gpu)
    return found if value <= 1 else Mfu(value=None, reason=_TOO_MUCH, flops_per_step=flops, gpu=gpu)


_TOO_MUCH = (
    "the computed FLOP rate exceeds the peak rate of the GPU, so the assumed data type or the number of "
    "FLOPs must be wrong"
)


def _why_not(rank: Rank, window: ProfilerWindow | None, gpu: Gpu | None, kind: str | None) -> str:
    if rank.device == "cpu":
        return "the peak FLOP rate of this CPU is not known"
    return _why_not_counted(rank, window) or _why_no_peak(rank, gpu, kind)


def _why_not_counted(rank: Rank, window: ProfilerWindow | None) -> str:
    if rank.meta.get("cuda_graphs"):
        return "the program replays a CUDA graph, and the profiler cannot count the FLOPs of a CUDA graph"
    if profiled_part(rank) < _WHOLE:
        return "the program trains models of several sizes, and not all of them were profiled"
    if window is None or window.matrix_work is None:
        return "the FLOPs of a step were not counted, because no step was profiled"
    if window.matrix_work.uncounted:
        return f"the FLOPs of some operators could not be counted ({', '.join(window.matrix_work.uncounted[:3])})"
    return "" if window.flops_per_step else "the profiled step contained no matrix products"


def _why_no_peak(rank: Rank, gpu: Gpu | None, kind: str | None) -> str:
    if gpu is None:
        return f"the peak rate of {rank.meta.get('device_name') or 'this GPU'} is not known to Paceline"
    if kind is None:
        return "the data type of the matrix products is not known"
    return "" if kind in gpu.peak_flops else f"the peak rate of the {gpu.name} in {kind} is not known to Paceline"
