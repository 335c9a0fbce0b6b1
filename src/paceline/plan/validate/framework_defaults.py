"""The defaults of training frameworks: kernels, overlap of messages with compute, and bytes per weight.

These are facts about the public code at the time of a measurement; nothing is fitted. Megatron-LM before 2023 had no
flash attention and reduced gradients after the last backward pass; its successors overlap gradients and tensor-parallel
messages. Since then, gradients are kept in 16 bits, except in FSDP and autocast, which keep fp32. LitGPT's
``bf16-true`` keeps everything in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.errors import UsageError
from paceline.plan.cost.case import Attention, Recompute, Sharded
from paceline.plan.models.architecture import Kernels

_OVERLAP_SINCE = 2023  # also the year of flash attention and sequence parallelism
_MIXED = {"weight_bytes": 4.0, "gradient_bytes": 4.0, "optimizer_bytes": 8.0}
_PURE = {"weight_bytes": 2.0, "gradient_bytes": 2.0, "optimizer_bytes": 4.0}

MemoryKind = Literal["allocated", "reserved", "shown"]


@dataclass(frozen=True, kw_only=True)
class SoftwareDescription:
    """The software behind one published training measurement, in the words of its source, in lower case."""

    framework: str
    precision: str
    recompute: str
    sharding: str
    extra: str
    year: int


def choices(said: SoftwareDescription) -> dict[str, Any]:
    """Return those fields of `Training` that the software determines; the precision is "" if it is not stated.

    Raises:
        UsageError: The stated precision is not a known number format.
    """
    old = said.year < _OVERLAP_SINCE and _has(said.framework, "megatron", "deepspeed")
    modern = not old and _has(said.framework, "megatron", "bridge", "nemo")
    sharded = _sharded(said)
    if modern and sharded == "nothing":
        sharded = "optimizer"  # the framework's default: a distributed optimizer
    return {
        "kernels": _kernels(said),
        "attention": _attention(said),
        "sharded": sharded,
        "precision": number_format(said.precision),
        "overlap_reduce": not old or "overlap" in said.extra,
        "piecewise": old and _has(said.framework, "deepspeed"),
        "overlap_tensor": modern or "async" in said.extra,
        "sequence_parallel": not old or "sp" in said.recompute,
        "loss_in_place": "composer" in said.framework,
        **recompute(said.recompute),
        **_bytes(said, old),
    }


def memory_kind(framework: str) -> MemoryKind:
    """Return which kind of memory a framework publishes: allocated, reserved, or as nvidia-smi shows it."""
    if "deepspeed" in framework:
        return "shown"
    return "allocated" if _has(framework, "megatron", "litgpt", "transformers") else "reserved"


def number_format(text: str) -> str:
    """Return the number format of matrix products for a word such as ``amp_bf16`` or ``FP8-CS``; "" for an empty word.

    Raises:
        UsageError: The word is not a known format.
    """
    if "rowwise" in text:  # row-wise scaled products ran no faster than 16-bit ones when this was published (2025)
        return "bf16"
    for word, found in (("fp4", "fp4"), ("fp8", "fp8"), ("bf16", "bf16"), ("bfloat16", "bf16"), ("tf32", "tf32")):
        if word in text:
            return found
    if text in ("fp32", "float32", "float", "32", "32-true"):
        return "fp32"
    if text and not _has(text, "16", "amp", "half", "mixed"):
        raise UsageError(f"unknown precision {text!r}; the known precisions are fp32, tf32, fp16, bf16, fp8 and fp4")
    return "fp16" if text else ""


def recompute(text: str) -> dict[str, Any]:
    """Return the `recompute` fields of `Training` for a word such as ``selective-layer``."""
    if not text or text in ("none", "no", "false", "off", "disabled"):
        return {"recompute": "none"}
    if "layer" in text and "select" in text:
        return {"recompute": "full", "recomputed_share": 0.5}
    kind: Recompute = "full"
    if "select" in text:
        kind = "operators" if "op" in text.replace("optimizer", "") else "attention"
    return {"recompute": kind}


def _kernels(said: SoftwareDescription) -> Kernels:
    if _has(said.extra, "compile", "fused", "rms"):
        return "fused"
    eager = _has(said.framework, "composer", "torchtitan", "litgpt", "hugging", "transformers", "pytorch")
    return "eager" if eager and "lamb" not in said.framework else "fused"


def _attention(said: SoftwareDescription) -> Attention:
    if "flash" in said.extra:
        return "flash"
    if _has(said.framework, "megatron-core", "bridge", "nemo", "torchtitan", "transformers"):
        return "tuned"
    if _has(said.framework, "composer", "meta"):
        return "early"
    if _has(said.framework, "flash", "litgpt"):
        return "flash"
    return "plain" if said.year < _OVERLAP_SINCE else "flash"


def _sharded(said: SoftwareDescription) -> Sharded:
    if _has(said.sharding, "fsdp", "full_shard", "zero-3", "zero3", "zero 3"):
        return "parameters"
    if _has(said.sharding, "optimizer", "zero", "grad"):
        return "optimizer"
    return "nothing"


def _bytes(said: SoftwareDescription, old: bool) -> dict[str, float]:
    if "true" in said.precision:
        return _PURE
    if _has(said.framework, "fsdp", "composer", "ddp", "litgpt", "torchtitan", "transformers"):
        return _MIXED
    return {} if old else {"gradient_bytes": 2.0}


def _has(text: str, *words: str) -> bool:
    return any(word in text for word in words)
