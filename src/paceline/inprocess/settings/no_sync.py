"""ddp.no_sync: exchange gradients only in the last backward of each step.

The number of backwards per step is learned from the first steps. If a step comes earlier than expected (the last
batches of an epoch), the gradients are exchanged before they are used, so ranks never step with their own gradients
only. If the step comes later than expected, all further backwards exchange gradients. This is correct, because the mean
of equal means is the same mean.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation, outermost_forward

_KEY = "ddp.no_sync"
_MOST_LOOKS = 8  # steps, until two in a row have the same number of backwards


def patch(torch: Any) -> None:
    """Skip gradient exchanges once the number of backwards per step is known."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    micro_steps = _MicroSteps(torch)
    outermost_forward.around(torch, micro_steps.forward)
    _patch_backward(torch, micro_steps.backward)
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: micro_steps.exchange())
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: micro_steps.step())
    for name in ("clip_grad_norm_", "clip_grad_value_", "get_total_norm"):
        _patch_before(torch.nn.utils, name, micro_steps.exchange)
        setattr(torch.nn.utils.clip_grad, name, getattr(torch.nn.utils, name))
    for name in ("unscale_", "step"):
        _patch_before(torch.amp.GradScaler, name, micro_steps.exchange)


class _MicroSteps:
    """The backwards since the last step of the only model that exchanges gradients."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._module: Any = None
        self._seen: list[int] = []  # numbers of backwards in the first steps
        self._every: int | None = None  # number of backwards per step, once known
        self._over = False  # no exchange is skipped (any more)
        self._backwards = 0
        self._leaves_out: bool | None = None  # whether the next backward skips it; None: another model's backward
        self._own = False  # the gradients are of this rank only

    def forward(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Decide before a forward whether its backward exchanges gradients."""
        exchanges = isinstance(module, self._torch.nn.parallel.DistributedDataParallel)
        if not exchanges or self._over or not self._torch.is_grad_enabled():
            return forward(*args, **kwargs)
        self._meet(module)
        self._leaves_out = not self._over and self._every is not None and self._backwards < self._every - 1
        if not self._leaves_out:
            return forward(*args, **kwargs)
        with module.no_sync():
            return forward(*args, **kwargs)

    def _meet(self, module: Any) -> None:
        if self._module is None:
            self._module = module
        if module is not self._module:
            self._give_up("several models exchange gradients")
        elif not module.require_backward_grad_sync:
            self._give_up("the program already uses no_sync() itself to skip gradient exchanges")
        elif module.find_unused_parameters:
            self._give_up(
                "the model uses find_unused_parameters, and the unused parameters may differ from rank to rank"
            )

    def _give_up(self, why: str) -> None:
        self._over = True
        confirmation.gave_up(_KEY, why)

    def backward(self) -> None:
        """Count a finished backward of the model. Backwards of other models do not count."""
        if self._leaves_out is not None:
            self._backwards += 1
            self._own, self._leaves_out = self._leaves_out, None

    def exchange(self) -> None:
        """Exchange skipped gradients before they are used."""
        if not self._own:
            return
        self._own = False
        group = self._module.process_group
        for parameter in self._module.parameters():
            if parameter.grad is not None:
                self._torch.distributed.all_reduce(parameter.grad, group=group)
                parameter.grad.div_(group.size())

    def step(self) -> None:
        """Learn the number of backwards per step from a finished step."""
        count, self._backwards = self._backwards, 0
        if count == 0 or self._every is not None or self._over:
            return
        self._seen.append(count)
        if self._seen[-2:] == [count, count]:
            self._decide(count)
        elif len(self._seen) == _MOST_LOOKS:
            self._over = True
            confirmation.refused(
                _KEY, f"the number of backward passes per step changes: {', '.join(map(str, self._seen))}"
            )

    def _decide(self, count: int) -> None:
        if count == 1:
            self._over = True
            confirmation.refused(_KEY, "a step has only one backward pass, so no gradient exchange can be skipped")
        else:
            self._every = count
            confirmation.took(_KEY, f"of the {count} backward passes of a step, only the last one exchanges gradients")


def _patch_backward(torch: Any, done: Callable[[], None]) -> None:
    original = torch.autograd.backward
    inside = [False]

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        outermost, inside[0] = not inside[0], True
        try:
            return original(*args, **kwargs)
        finally:
            if outermost:
                inside[0] = False
                done()

    hooks.install(torch.autograd, "backward", backward)


def _patch_before(owner: Any, name: str, act: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def after_acting(*args: Any, **kwargs: Any) -> Any:
        act()
        return original(*args, **kwargs)

    hooks.install(owner, name, after_acting)
