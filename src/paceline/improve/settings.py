"""What can a recipe set, and to what? One line each, in torch's own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing that a recipe can set."""

    takes: str  # in words
    allows: Callable[[Any], bool]


def _count(least: int, most: int) -> Setting:
    def allows(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Setting(takes=f"a whole number from {least} to {most}", allows=allows)


def _share() -> Setting:
    def allows(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1

    return Setting(takes="a share from 0 to 1", allows=allows)


def _factor() -> Setting:
    def allows(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 1e-6 <= value <= 1e6

    return Setting(takes="a factor from 1e-6 to 1e6", allows=allows)


def _one_of(*values: Any) -> Setting:
    words = ", ".join(str(v).lower() if isinstance(v, bool) else repr(v) for v in values)
    return Setting(takes=words, allows=lambda value: any(type(value) is type(v) and value == v for v in values))


SETTINGS: Mapping[str, Setting] = {
    "loader.batch_size": _count(1, 1 << 30),
    "loader.num_workers": _count(0, 256),
    "loader.evaluation_workers": _count(1, 256),
    "loader.prefetch_factor": _count(1, 64),
    "loader.persistent_workers": _one_of(True, False),
    "loader.pin_memory": _one_of(True, False),
    "loader.threads": _count(1, 256),
    "loader.cache": _one_of(True),
    "loader.device_prefetch": _one_of(True),
    "precision.autocast": _one_of("bf16", "fp16"),
    "precision.tf32": _one_of(True, False),
    "compute.compile": _one_of("default", "reduce-overhead", "max-autotune"),
    "compute.channels_last": _one_of(True),
    "compute.num_threads": _count(1, 1024),
    "compute.cudnn_benchmark": _one_of(True),
    "compute.sdpa_backend": _one_of("flash", "efficient", "cudnn", "math"),
    "optimizer.fused": _one_of(True),
    "optimizer.foreach": _one_of(True),
    "optimizer.state_8bit": _one_of(True),
    "optimizer.lr_factor": _factor(),
    "memory.checkpoint_every": _count(1, 1024),
    "memory.activation_budget": _share(),
    "memory.micro_batches": _count(2, 4096),
    "ddp.bucket_cap_mb": _count(1, 4096),
    "ddp.static_graph": _one_of(True),
    "ddp.gradient_as_bucket_view": _one_of(True),
    "ddp.find_unused_parameters": _one_of(False),
    "ddp.comm_hook": _one_of("fp16", "bf16", "powersgd"),
    "ddp.no_sync": _one_of(True),
    "allocator.expandable_segments": _one_of(True),
    "debug.anomaly_detection": _one_of(False),
    "debug.deterministic_algorithms": _one_of(False),
    "debug.distributed_debug": _one_of(False),
    "debug.launch_blocking": _one_of(False),
}
