"""Private names of torch that parts of Paceline need.

Another version of torch may lack some of them. A part with a missing name is then switched off with a reason, and
everything else works. ``make versions`` checks all names in each version of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

SEEN = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Versions of torch in which every name was found."""

NAMES: dict[str, tuple[str, ...]] = {
    "steps": ("torch.autograd._engine_run_backward", "torch._C.DisableTorchFunction"),
    "loading of batches": (
        "torch.utils.data.dataloader._BaseDataLoaderIter",
        "torch.utils.data.dataloader._SingleProcessDataLoaderIter",
        "torch.utils.data.dataloader._MultiProcessingDataLoaderIter",
    ),
    "loader workers": (
        "torch.utils.data._utils.fetch._MapDatasetFetcher",
        "torch.utils.data._utils.fetch._IterableDatasetFetcher",
    ),
    "losses": (
        "torch._C._len_torch_function_stack",
        "torch._C._len_torch_dispatch_stack",
        "torch._C._get_tracing_state",
        "torch._C._functorch.peek_interpreter_stack",
        "torch.autograd._profiler_enabled",
        "torch._C._autograd._enable_record_function",
    ),
    "communication": ("torch._C._distributed_c10d.Work", "torch.distributed._functional_collectives"),
    "profiler window": (
        "torch._C._autograd._enable_profiler_legacy",
        "torch._C._autograd._disable_profiler_legacy",
        "torch._C._profiler.ProfilerConfig",
        "torch._C._profiler.ProfilerState",
        "torch._C._profiler._ExperimentalConfig",
    ),
    "staying out of torch.compile": (
        "torch._C._dynamo.eval_frame._FrameExecStrategy",
        "torch._C._dynamo.eval_frame._FrameAction",
        "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    ),
    "counts of operators": ("torch.utils._python_dispatch.TorchDispatchMode",),
    "plan: models without values": (
        "torch._C._nn.scaled_dot_product_attention",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
        "torch.nn.modules.conv._ConvNd",
    ),
    "tune: loader.device_prefetch": (
        "torch._C.TensorBase.untyped_storage",
        "torch._C._functorch.maybe_current_level",
        "torch._C._nn._parse_to",
    ),
    "tune: compute.sdpa_backend": ("torch._C._get_sdp_priority_order",),
    "tune: compute.compile": ("torch._dynamo.config", "torch._dynamo.utils", "torch._inductor.config"),
    "tune: memory.checkpoint": ("torch.nn.modules.batchnorm._BatchNorm", "torch.nn.modules.batchnorm._NormBase"),
    "train": (
        "torch._foreach_mul_",
        "torch._foreach_copy_",
        "torch._C._storage_Use_Count",
        "torch.distributed.distributed_c10d._get_default_store",
        "torch.distributed.distributed_c10d._set_pg_timeout",
        "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam.reset_sharded_param",
        "torch.distributed.tensor._dispatch.OpDispatcher.redistribute_local_args",
        "torch.distributed.tensor._utils.compute_local_shape_and_global_offset",
        "torch._dynamo.config.wrap_top_frame",
        "torch.utils._pytree.tree_flatten",
        "torch.utils._pytree.tree_unflatten",
    ),
}
"""The names that each part needs."""

switched_off: dict[str, str] = {}
"""The parts of recording that are switched off in this process, each with the reason."""


def missing(part: str) -> list[str]:
    """Return the names that a part needs and this torch lacks."""
    return [name for name in NAMES[part] if not _is_there(name)]


def _is_there(name: str) -> bool:
    """Return whether a dotted name such as ``torch.optim.Optimizer.step`` exists in the installed torch."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        return _has(found, parts[count:])
    return False


def _has(owner: Any, attributes: list[str]) -> bool:
    for attribute in attributes:
        if not hasattr(owner, attribute):
            return False
        owner = getattr(owner, attribute)
    return True


def patch_part(part: str, patch: Callable[[], None]) -> None:
    """Patch torch for one part of recording. If torch lacks a name, switch the part off."""
    try:
        patch()
    except (AttributeError, ImportError) as error:
        version = getattr(sys.modules.get("torch"), "__version__", "?")
        switched_off[part] = (
            f"torch {version} does not have a name that Paceline needs here ({type(error).__name__}: {error})"[:300]
        )
