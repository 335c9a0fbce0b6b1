"""Local SGD and DiLoCo (a mode of dp): replicas train independently for some steps and then average; for slow links.

Every H steps the parameters x_r of all replicas are averaged, and the parameters a of the last synchronization
take a step towards the average:

    d = a - mean_r x_r;   a <- SGD(a, d; outer_lr, Nesterov momentum);   x_r <- a

With an outer learning rate of 1 and no momentum this is local SGD (Stich 2019). DiLoCo uses AdamW inside, and 0.7 and
0.9 outside (Douillard et al. 2023, algorithm 1). Parameters are sent once in H steps instead of gradients in each: 1/H
of the bytes, not overlapped with computation. The training algorithm differs from synchronous training: losses equal
those of one process only for H = 1 with plain SGD. This mode needs two more copies of the parameters (a and d), three
with momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.gradients import is_number


@dataclass(frozen=True, kw_only=True)
class Local:
    """How often replicas are synchronized, and the outer optimizer; table ``[local]`` of a recipe."""

    every: int | None = None  # steps between synchronizations; None: gradients are averaged in each step
    outer_lr: float = 1.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        every = self.every
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise UsageError(f"local.every = {every!r} is not allowed; it takes a whole number of steps from 1 on")
        numbers = is_number(self.outer_lr) and is_number(self.outer_momentum)
        if not numbers or not self.outer_lr > 0 or not 0 <= self.outer_momentum < 1:
            raise UsageError(
                f"local.outer_lr = {self.outer_lr!r}, local.outer_momentum = {self.outer_momentum!r}: they take a "
                "number above 0, and one from 0 to below 1; DiLoCo has 0.7 and 0.9"
            )

    def check(self, layout: Layout) -> None:
        """Check that the layout has replicas and no other axis.

        Raises:
            UsageError: The layout has no replicas or has other axes.
        """
        if self.every is not None and layout.in_use != ("dp",):
            raise UsageError(
                f"local.every = {self.every} with layout {layout}: [local] needs at least two replicas of "
                "the whole model; use a layout with dp only, such as dp=2, or leave out [local]"
            )


class Meetings:
    """Synchronizes replicas every few steps; keeps the outer optimizer and the last synchronized parameters."""

    def __init__(self, settings: Local, model: Any, group: Any) -> None:
        """Start from a model that has the same parameters on all ranks.

        Args:
            settings: How often replicas are synchronized, and the outer optimizer's settings.
            model: The model; its parameters are changed in place.
            group: Process group of the replicas.
        """
        import torch

        self.every = settings.every or 1
        self._model = model
        self._group = group
        self._begun = {name: value.detach().clone() for name, value in model.named_parameters()}
        momentum = settings.outer_momentum
        self._outer = torch.optim.SGD(
            list(self._begun.values()), lr=settings.outer_lr, momentum=momentum, nesterov=momentum > 0
        )

    def begin(self) -> None:
        """Do nothing: each replica has its own parameters before a step."""

    def due(self) -> int:
        """Return 1: the learning-rate schedule advances by one after each step."""
        return 1

    def meet(self) -> None:
        """Do nothing: replicas are synchronized every `every` steps only."""

    def close(self) -> None:
        """Do nothing: no rank waits for another one at the end."""

    def can_save(self, tried: int) -> None:
        """Check that the replicas are synchronized.

        Args:
            tried: The number of steps so far, with skipped ones.

        Raises:
            UsageError: The replicas differ.
        """
        if tried % self.every:
            raise UsageError(
                f"save() after {tried} steps, when the replicas differ: they are not synchronized yet. Save "
                f"after a multiple of "
                f"local.every = {self.every} steps"
            )

    def after(self, step: int, applied: bool) -> None:
        """Synchronize the replicas if the step is a multiple of `every`.

        Args:
            step: The number of the step, from 1, with skipped ones.
            applied: Not used.
        """
        import torch

        del applied
        if step % self.every:
            return
        with torch.no_grad():
            for name, value in self._model.named_parameters():
                begun = self._begun[name]
                begun.grad = begun - self._mean(value)
            self._outer.step()
            for name, value in self._model.named_parameters():
                value.copy_(self._begun[name])
            for buffer in self._model.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self._mean(buffer))

    def _mean(self, value: Any) -> Any:
        """Return the mean of a tensor over the replicas."""
        import torch

        total = value.detach().clone()
        torch.distributed.all_reduce(total, group=self._group)
        return total / torch.distributed.get_world_size(self._group)

    def state(self) -> dict[str, Any]:
        """Return the momentum of the outer optimizer by parameter name, as tensors that a checkpoint can load into."""
        import torch

        held = {name: self._outer.state[begun].get("momentum_buffer") for name, begun in self._begun.items()}
        return {name: torch.zeros_like(self._begun[name]) if value is None else value for name, value in held.items()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of synchronized replicas, whose parameters the model has already loaded."""
        parameters = dict(self._model.named_parameters())
        for name, begun in self._begun.items():
            begun.copy_(parameters[name].detach())
            if self._outer.defaults["momentum"]:
                self._outer.state[begun]["momentum_buffer"] = state[name].clone()
