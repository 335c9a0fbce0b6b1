"""How does a loop that someone wrote run on any layout, in any precision, with the same numbers?

    engine = Engine(recipe)
    model, optimizer = engine.setup(model, lambda model: AdamW(model.parameters()), loss=cross_entropy)
    for inputs, target in engine.loader(loader):
        engine.train_batch(inputs, target)      # or own micro-steps: engine.split, micro_step, backward
        engine.step()

The engine is built from a recipe, all of which is checked before anything is made. One rank under `python` and many
under `torchrun` run the same script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.train import gradients, loaders, optimizers
from paceline.train.arrange import arrange
from paceline.train.comparison.first_step import FirstStep, copied
from paceline.train.passes import Loss, Passes
from paceline.train.replicas import replicas_of
from paceline.train.run import Run
from paceline.train.world import draw_apart, draw_within


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step came to."""

    applied: bool  # False: gradients were not finite, and with fp16 the step was skipped
    norm: Any  # of the gradient before clipping, a scalar tensor; None where neither clipping nor fp16 asked for it
    loss_scale: float  # 1 without fp16


class Engine(Run):
    """Runs a loop on a layout; one a process."""

    def setup(
        self,
        model: Any,
        optimizer: Callable[[Any], Any],
        *,
        loss: Loss | None = None,
        weight: Callable[[Any], Any] | None = None,
        schedule: Callable[[Any], Any] | None = None,
        sample: Any = None,
    ) -> tuple[Any, Any]:
        """Spread a model over the ranks, then make its optimizer.

        Args:
            model: The whole model, made by each rank; the values of rank 0 count.
            optimizer: Makes the optimizer of a model: `lambda model: AdamW(model.parameters())`.
            loss: Makes a scalar of output and target, a mean over `weight(target)` things; `train_batch` needs it.
            weight: How much a target counts, such as its tokens; None: all parts alike.
            schedule: Makes the learning-rate schedule of an optimizer; it goes on with each applied step.
            sample: Inputs of a rank's batch, for stages of measured cost only.

        Returns:
            The model to call, and the optimizer.

        Raises:
            UsageError: The layout does not fit the model, or the optimizer does not belong to it.
        """
        if self._passes is not None:
            raise UsageError(
                "setup() was called before, and an engine trains only one model; create one Engine per model"
            )
        optimizers.check_maker(optimizer)
        copy = partial(copied, world=self.world, recipe=self.recipe)
        arranged = arrange(model, self.world, self.recipe, sample, copy)
        self._passes = Passes(arranged, self._weights, self._planned, self._context, self.scale)
        self._optimizer = optimizers.made(optimizer, arranged.held)
        self._made_with_state = bool(self._optimizer.state)
        self._replicas = replicas_of(self.recipe, model, self.world)
        draw_apart(self.world)
        self._schedule = optimizers.schedule_of(schedule, self._optimizer)
        self._loss, self._weight = loss, weight
        if arranged.stages is None:
            draw_within(arranged.module, self.world)
            arranged.module.register_forward_hook(lambda _, __, output: self._weights.guard(output))
        if arranged.whole is not None:
            self._first_step = FirstStep(arranged, self.world, self.recipe)
            self._first_step.watch()
        return arranged.module, self._optimizer

    def loader(self, loader: Any) -> Any:
        """Return a loader of this rank's part of each batch, on its device; batches are the same as with one process.

        Args:
            loader: torch's `DataLoader`, or `paceline.data.Loader`; where it is, `save` and `load` keep.

        Raises:
            UsageError: It cannot be split, or its batches cannot, or a checkpoint is of another data set.
        """
        own = loaders.split(loader, self.world, self._planned, dealt=self._dealt)
        self._places.add(own.loader)
        return own

    def split(self, batch: Any) -> list[Any]:
        """Split a batch (a tensor, or a tuple, list or dict of them) into its micro-batches, along dimension 0."""
        return loaders.parts(batch, self._planned)

    @contextmanager
    def micro_step(self, *, last: bool | None = None) -> Iterator[None]:
        """Run forward and backward of a micro-batch inside, in the run's precision; the last one reduces gradients.

        Args:
            last: Whether `step()` comes next; None: after as many micro-steps as the recipe has.
        """
        passes = self._ready()
        if passes.begun == 0 and self._replicas is not None:
            self._replicas.begin()
        with passes.micro_step(last):
            yield

    def backward(self, loss: Any, weight: Any = None) -> None:
        """Run backward of one micro-batch; several losses of one micro-step add up.

        Args:
            loss: A scalar tensor, a mean over `weight` things.
            weight: A number or a scalar tensor, the same for all losses of a micro-step; None: all micro-batches count
                alike. Where the weights of a step sum to 0 its gradient is 0.
        """
        self._ready().backward(loss, weight)

    def train_batch(self, inputs: Any, target: Any) -> None:
        """Run forward and backward of this rank's batch, in micro-batches, on any layout.

        Args:
            inputs: What the model is called with: a tensor, samples in dimension 0.
            target: What the loss is called with beside the output.
        """
        passes = self._ready()
        if self._loss is None:
            raise UsageError(
                "train_batch() needs the loss: setup(model, optimizer, loss=torch.nn.functional.cross_entropy)"
            )
        if self._first_step is not None and self._first_step.due:
            self._first_step.of_batch(inputs, target, self._loss, self._weight)
        self._first_step = None
        if passes.begun == 0 and self._replicas is not None:
            self._replicas.begin()
        passes.train(inputs, target, self._loss, self._weight)

    def loss(self) -> float:
        """Return the loss of this step's batch over all ranks (with `[asynchronous]` this one's), before `step()`."""
        return float(self._weights.mean(self.world.group("pp")))

    def step(self) -> Step:
        """Clip, update the parameters, and go on to the next step.

        Raises:
            UsageError: The gradients of this step were not reduced.
        """
        passes = self._ready()
        arranged = passes.arranged
        if not passes.synced:
            raise UsageError(
                f"step() after {passes.begun} of {self._planned} micro-steps: gradients are not reduced yet; "
                "pass last=True to the last micro_step() of a shorter step"
            )
        arranged.check_used()
        held = [p.grad for p in arranged.held.parameters() if p.grad is not None]
        result = self._update(held)
        self._optimizer.zero_grad()
        passes.clear()
        self._tried += 1
        if self._replicas is not None:
            self._replicas.after(self._tried, result.applied)
        return result

    def _update(self, held: list[Any]) -> Step:
        """Bring gradients to their size and apply them."""
        clip, scale = self.recipe.optimizer.clip_norm, self.scale
        value = scale.value if scale else 1.0
        factor = self._weights.factor() / value
        norm: Any = None
        if clip is not None or scale is not None:
            norm = gradients.norm_of(held, self.device, self.world.group("pp")) * factor
        finite = scale is None or bool(norm.isfinite())
        if clip is not None:
            factor = factor * (clip / (norm + 1e-6)).clamp(max=1.0)
        if finite:
            gradients.multiply(held, factor)
            self._optimizer.step()
            self.steps += 1
            for _ in range(1 if self._replicas is None else self._replicas.due()):
                if self._schedule is not None:
                    self._schedule.step()
        if scale is not None:
            scale.update(finite)
        return Step(applied=finite, norm=norm, loss_scale=value)
