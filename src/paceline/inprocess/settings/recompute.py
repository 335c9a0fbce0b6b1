"""How is a forward run without keeping what backward needs, and computed again there as if it were the first time?

``torch.utils.checkpoint`` without reentrance, and two things more: BatchNorm must not count the same batch twice
(pytorch#96136), and a forward inside of backward is no model's outermost one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from paceline.inprocess.settings import outermost_forward


def forgetful(torch: Any, module: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a forward of a module, keep its inputs only, and compute it again in backward."""
    from torch.utils.checkpoint import checkpoint

    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _again(norms)

    with _no_driver_asked(torch):
        return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, context_fn=contexts)


@contextmanager
def _no_driver_asked(torch: Any) -> Iterator[None]:
    """Have torch take inputs on the CPU to be all there is, until the program uses CUDA.

    It would ask the driver which device there is, after which no forked process could use one.
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
    """Stand in a forward that is done a second time: statistics that were counted are not counted again.

    They take part all the same (autograd saves them with the rest), with no weight for what is new.
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
