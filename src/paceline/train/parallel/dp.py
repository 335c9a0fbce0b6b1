"""dp: each rank has the whole model and other samples; gradients are averaged while backward runs (torch's DDP).

Costs per step: an all-reduce of all gradients, 2 (n - 1) / n times their bytes through each rank's link, hidden behind
backward but for the last bucket. Saves no memory. Combined with tp, pp or shard, FSDP2 keeps the replicas instead
(`shard.py`): torch's `replicate()` with tensor parallel parameters gives other losses (measured in torch 2.13) and is
used nowhere.

Gradients can be compressed on their way, which is other mathematics. fp16 and bf16 halve the bytes. PowerSGD sends an
m x n matrix as one of rank 1, m + n numbers in place of m n, and adds what was left out to the next step's gradient
(Vogels et al. 2019); from step 10 on, as first gradients are far from low rank, and takes a copy of the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout

_HOOKS = ("fp16", "bf16", "powersgd")
_POWERSGD_FROM = 10  # steps; before, buckets also have to become what they stay
_NO_LENGTH = 1e-8  # added to the length of a column, as one without any would be divided by 0


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How replicas exchange gradients; table ``[ddp]`` of a recipe."""

    bucket_cap_mb: int | None = None  # MiB sent at a time; None: torch's, 25 and 1 for the first
    comm_hook: str | None = None  # one of `_HOOKS`; None: gradients as they are
    find_unused_parameters: bool | None = None  # whether some may have no part in a loss; costs a walk over its graph

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
        """See that gradients are exchanged by DDP.

        Args:
            layout: Of the run.
            alone: Whether replicas train alone between meetings.
            scaled: Whether the loss is scaled, so that gradients may overflow.

        Raises:
            UsageError: They are not, or the hook would keep what overflows.
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


def wrap(model: Any, group: Any, device: Any, exchange: Exchange) -> Any:
    """Return the model as a replica.

    Args:
        model: A module with parameters that want gradients.
        group: The ranks to average over.
        device: `torch.device` of this rank.
        exchange: Of gradients.

    Raises:
        UsageError: What connects the ranks cannot do what the hook asks for.
    """
    from torch.nn.parallel import DistributedDataParallel

    _check_backend(model, group, device, exchange)
    replica = DistributedDataParallel(
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
    return replica


def _send_in_training(replica: Any, *_: Any) -> None:
    """Have DDP send buffers in training only: a rank that evaluates alone would wait for the others."""
    replica.require_forward_param_sync = replica.training


def _check_backend(model: Any, group: Any, device: Any, exchange: Exchange) -> None:
    """See that the backend can do what the hook asks for."""
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
    """Return the state and the function of a hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, start_powerSGD_iter=_POWERSGD_FROM, orthogonalization_epsilon=_NO_LENGTH
        )
        return state, powerSGD_hook.powerSGD_hook
    return group, {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[name]


def check_used(model: Any, exchange: Exchange) -> None:
    """See that all parameters had a part in the loss: DDP waits for the gradient of each, and sends none before.

    Args:
        model: The module within the replica.
        exchange: Of gradients.

    Raises:
        UsageError: Some had none.
    """
    if exchange.find_unused_parameters:
        return
    unused = [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]
    if unused:
        raise UsageError(
            f"{', '.join(unused[:3])}{f' and {len(unused) - 3} more' if unused[3:] else ''} did not contribute "
            f"to the loss, "
            "so gradients were not averaged; set ddp.find_unused_parameters = true, freeze them "
            "(requires_grad_(False)), or use shard instead of dp"
        )


def set_sync(replica: Any, on: bool) -> None:
    """Let the coming micro-step average gradients, or keep them to this rank."""
    replica.require_backward_grad_sync = on
