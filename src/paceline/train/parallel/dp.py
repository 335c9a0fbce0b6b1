"""Data parallelism (dp): each rank has the whole model and different samples; torch's DDP averages gradients.

The cost per step is an all-reduce of all gradients: 2 (n - 1) / n times their bytes through each rank's link,
overlapped with backward except for the last bucket. No memory is saved. Combined with tp, pp or shard, FSDP2
averages the gradients instead (`shard.py`): torch's `replicate()` with tensor-parallel parameters gives other
losses (measured in torch 2.13) and is not used.

Gradients can be compressed for the all-reduce, which changes the training algorithm. fp16 and bf16 halve the
bytes. PowerSGD sends an m x n matrix as a rank-1 product, m + n numbers instead of m n, and adds the error to
the gradient of the next step (Vogels et al. 2019). It starts at step 10, because the first gradients are far
from low rank, and needs a copy of the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout

_HOOKS = ("fp16", "bf16", "powersgd")
_POWERSGD_FROM = 10  # steps; by then DDP has also settled its buckets
_NO_LENGTH = 1e-8  # added to the norm of a column, to avoid a division by 0
# Methods of a model that a replica has too, so that a program meets the names and children of one process.
_OF_THE_MODEL = (
    *("parameters", "named_parameters", "buffers", "named_buffers", "get_parameter", "get_buffer"),
    *("modules", "named_modules", "children", "named_children", "get_submodule", "state_dict", "load_state_dict"),
)


@dataclass(frozen=True, kw_only=True)
class GradientExchange:
    """How replicas exchange gradients; table ``[ddp]`` of a recipe."""

    bucket_cap_mb: int | None = None  # MiB per bucket; None: torch's default, 25, and 1 for the first bucket
    comm_hook: str | None = None  # one of `_HOOKS`; None: gradients are not compressed
    find_unused_parameters: bool | None = (
        None  # whether some parameters may get no gradient; costs a walk over the autograd graph
    )

    def __post_init__(self) -> None:
        size = self.bucket_cap_mb
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise UsageError(f"ddp.bucket_cap_mb = {size!r} is not allowed; it takes a whole number of MiB from 1 on")
        if self.comm_hook not in (None, *_HOOKS):
            raise UsageError(f"ddp.comm_hook = {self.comm_hook!r} is not allowed; it takes {', '.join(_HOOKS)}")
        if not isinstance(self.find_unused_parameters, bool | None):
            raise UsageError(
                f"ddp.find_unused_parameters = {self.find_unused_parameters!r} is not allowed; it takes true or false"
            )

    def check(self, layout: Layout, *, alone: bool, scaled: bool) -> None:
        """Check that these settings apply to the layout.

        Args:
            layout: The layout of the run.
            alone: Whether replicas train independently (``[local]`` or ``[asynchronous]``).
            scaled: Whether the loss is scaled (fp16), so that gradients can overflow.

        Raises:
            UsageError: The layout does not use DDP, or the hook would carry an overflow into later steps.
        """
        given = [f"ddp.{name} = {value!r}" for name, value in vars(self).items() if value is not None]
        if given and (alone or not layout.in_use or not {"dp", "cp"}.issuperset(layout.in_use)):
            how = (
                "replicas with [local] or [asynchronous] exchange parameters instead of gradients"
                if alone
                else f"layout {layout} does not use DDP"
            )
            raise UsageError(
                f"{', '.join(given)}: {how} (FSDP2 keeps replicas beside shard, tp and pp); use a layout with dp only, "
                "such as dp=2, or leave [ddp] out"
            )
        if self.comm_hook == "powersgd" and scaled:
            raise UsageError(
                "ddp.comm_hook = 'powersgd' with precision fp16: its error feedback would carry an overflow "
                "into every later step; "
                "use bf16, or another comm_hook"
            )


def wrap(model: Any, group: Any, device: Any, exchange: GradientExchange) -> Any:
    """Return the model wrapped in DistributedDataParallel.

    Args:
        model: A module with trainable parameters.
        group: Process group of the ranks to average over.
        device: `torch.device` of this rank.
        exchange: How gradients are exchanged.

    Raises:
        UsageError: The communication backend does not support the compression hook.
    """
    _check_backend(model, group, device, exchange)
    containers = tuple(name for name in ("__getitem__", "__len__", "__iter__") if hasattr(type(model), name))
    replica = _replica_type(containers)(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        bucket_cap_mb=exchange.bucket_cap_mb,
        gradient_as_bucket_view=True,
        find_unused_parameters=bool(exchange.find_unused_parameters),
    )
    replica.register_forward_pre_hook(_send_in_training)
    if exchange.comm_hook is not None:
        replica.register_comm_hook(*_hook(exchange.comm_hook, group))
    vars(replica)["passes_attributes"] = True
    return replica


@cache
def _replica_type(containers: tuple[str, ...]) -> Any:
    """Return the class `Replica`, which is created late because it needs torch.

    Args:
        containers: The methods of a container that the model has, such as ``__getitem__`` of an `nn.Sequential`.
    """
    from torch.nn.parallel import DistributedDataParallel

    class Replica(DistributedDataParallel):
        """DDP with the attributes, parameter names and submodules of the model inside it."""

        def __getattr__(self, name: str) -> Any:
            if name in vars(self)["_modules"] or "module" not in vars(self)["_modules"]:
                return super().__getattr__(name)
            return getattr(self.module, name)

        def __setattr__(self, name: str, value: Any) -> None:
            is_own = name in vars(self) or hasattr(type(self), name)
            if not vars(self).get("passes_attributes") or is_own or name[0] == "_" and not hasattr(self.module, name):
                super().__setattr__(name, value)
            else:
                setattr(self.module, name, value)

        def train(self, mode: bool = True) -> Any:
            self.training = mode
            self.module.train(mode)
            return self

        def apply(self, change: Callable[[Any], None]) -> Any:
            self.module.apply(change)
            return self

        def _apply(self, *args: Any, **kwargs: Any) -> Any:
            self.module._apply(*args, **kwargs)
            return self

    for name in (*_OF_THE_MODEL, *containers):
        setattr(Replica, name, _of_the_model(name))
    return Replica


def _of_the_model(name: str) -> Callable[..., Any]:
    """Return a method that calls the method of the model inside a replica."""

    def call(replica: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(replica.module, name)(*args, **kwargs)

    return call


def _send_in_training(replica: Any, *_: Any) -> None:
    """Make DDP broadcast buffers in training only, so that a rank can evaluate alone."""
    replica.require_forward_param_sync = replica.training


def _check_backend(model: Any, group: Any, device: Any, exchange: GradientExchange) -> None:
    """Check that the communication backend supports the compression hook."""
    import torch

    backend = dict(each.split(":") for each in torch.distributed.get_backend_config(group).split(","))[device.type]
    if backend == "nccl" or exchange.comm_hook in (None, "fp16"):
        return
    if exchange.comm_hook == "bf16":
        raise UsageError(f"ddp.comm_hook = 'bf16' needs NCCL, and ranks are connected by {backend}; use 'fp16'")
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    needs = -(-sum(parameter.nbytes for parameter in wanted) // 2**20)
    if (exchange.bucket_cap_mb or 0) < needs or len({parameter.dtype for parameter in wanted}) > 1:
        raise UsageError(
            f"ddp.comm_hook = 'powersgd' with {backend}, which confuses the messages of several buckets: all "
            f"gradients must have one data type and fit in one bucket; set ddp.bucket_cap_mb = {needs}, or use 'fp16'"
        )


def _hook(name: str, group: Any) -> tuple[Any, Any]:
    """Return the state and the function of a DDP communication hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, start_powerSGD_iter=_POWERSGD_FROM, orthogonalization_epsilon=_NO_LENGTH
        )
        return state, powerSGD_hook.powerSGD_hook
    return group, {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[name]


def check_of_used(model: Any, exchange: GradientExchange) -> Callable[[], None]:
    """Return a function that checks that DDP averaged the gradients of all trainable parameters.

    DDP averages the gradients of the parameters that were trainable when it wrapped the model. If one of these has no
    gradient, DDP waits for it and averages none of the others. The function raises a `UsageError` that names such
    parameters, and parameters that were frozen or unfrozen later.

    Args:
        model: The module inside the DDP replica.
        exchange: How gradients are exchanged.
    """
    named = [(name, each, each.requires_grad) for name, each in model.named_parameters()]

    def check() -> None:
        changed = [name for name, each, trained in named if each.requires_grad != trained]
        if changed:
            raise UsageError(
                f"{_listed(changed)} was frozen or unfrozen after setup() (requires_grad), and dp averages the "
                "gradients of the parameters that were trainable in setup(); use the layout shard, which allows this, "
                "or save a checkpoint, and call setup() and load() on a new engine"
            )
        unused = [name for name, each, trained in named if trained and each.grad is None]
        if unused and not exchange.find_unused_parameters:
            raise UsageError(
                f"{_listed(unused)} did not contribute to the loss, so gradients were not averaged; set "
                "ddp.find_unused_parameters = true, freeze them before setup() (requires_grad_(False)), or use the "
                "layout shard"
            )

    return check


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}"


def set_sync(replica: Any, on: bool) -> None:
    """Set whether the next micro-step averages gradients over ranks or only accumulates them on this rank."""
    replica.require_backward_grad_sync = on
