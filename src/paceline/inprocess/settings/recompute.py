"""Run a forward without saving tensors for backward, and recompute it in backward.

This uses ``torch.utils.checkpoint`` without reentrance, with two additions: BatchNorm must not count the same batch
twice (pytorch#96136), and a recomputed forward does not count as an outermost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from paceline.inprocess.settings import outermost_forward


def forgetful(torch: Any, module: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a forward of a module, save only its inputs, and recompute it in backward."""
    from torch.utils.checkpoint import checkpoint

    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _again(norms)

    with _no_driver_asked(torch):
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, context_fn=contexts)


@contextmanager
def _no_driver_asked(torch: Any) -> Iterator[None]:
    """Make torch assume CPU inputs until the program uses CUDA.

    Otherwise torch would ask the driver for the device type, and forked processes could no longer use CUDA.
    """
    from torch.utils.checkpoint import DefaultDeviceType

    if torch.cuda.is_initialized() or getattr(DefaultDeviceType, "_default_device_type", "cuda"):
        yield
        return
    DefaultDeviceType._default_device_type = "cpu"
    try:
        yield
    finally:
        DefaultDeviceType._default_device_type = None


@contextmanager
def _again(norms: list[Any]) -> Iterator[None]:
    """Run the block as a recomputed forward: BatchNorm statistics are not updated a second time.

    BatchNorm still computes them, because autograd saves the same tensors, but with momentum 0.
    """
    counting = [norm for norm in norms if norm.track_running_stats and norm.training]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in counting]
    for norm in counting:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        with outermost_forward.within_one():
            yield
    finally:
        for norm, (momentum, batches) in zip(counting, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, batches
