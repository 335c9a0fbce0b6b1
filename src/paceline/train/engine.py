"""Runs a user's training loop on any layout and in any precision, with the same results as on one process.

    engine = Engine(recipe)
    model, optimizer = engine.setup(model, lambda model: AdamW(model.parameters()), loss=cross_entropy)
    for inputs, target in engine.loader(loader):
        engine.train_batch(inputs, target)      # or own micro-steps: engine.split, micro_step, backward
        engine.step()

The engine is created from a recipe, which is checked as a whole before anything else happens. The same script
runs on one rank under `python` and on many under `torchrun`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.train import gradients, optimizers
from paceline.train.arrange import Arranged, arrange
from paceline.train.average import AveragedWeights
from paceline.train.batch_samples import split_batch
from paceline.train.batches import loaders
from paceline.train.comparison.first_step import FirstStep, copied
from paceline.train.engine_base import EngineBase
from paceline.train.meta_device import Init, Weights, fill, source_of
from paceline.train.parallel.replicas import replicas_of
from paceline.train.passes import Loss
from paceline.train.ranks.world import draw_apart, draw_within


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of a step."""

    applied: bool  # False: with fp16, gradients were not finite and the step was skipped
    norm: Any  # gradient norm before clipping, a scalar tensor; None without clipping and fp16
    loss_scale: float  # 1 without fp16


class Engine(EngineBase):
    """Runs a training loop on a layout; each process creates one."""

    def setup(  # noqa: PLR0913
        self,
        model: Any,
        optimizer: Callable[[Any], Any],
        *,
        loss: Loss | None = None,
        weight: Callable[[Any], Any] | None = None,
        schedule: Callable[[Any], Any] | None = None,
        sample: Any = None,
        init: Init | None = None,
        weights: Weights | None = None,
    ) -> tuple[Any, Any]:
        """Distribute a model over the ranks, then create its optimizer.

        Args:
            model: The whole model, made by each rank; the values of rank 0 count. With `shard` it may be on the meta
                device: it is split first, and gets its values after that, part by part.
            optimizer: Makes the optimizer of a model: `lambda model: AdamW(model.parameters())`.
            loss: Makes a scalar of output and target, a mean over `weight(target)` things; `train_batch` needs it.
            weight: How much a target counts, such as its tokens; None: all parts alike.
            schedule: Makes the learning-rate schedule of an optimizer; it goes on with each applied step.
            sample: Inputs of a rank's batch, for stages of measured cost only.
            init: Gives values to a model on the meta device: ``"reset_parameters"``, the method of each module, or a
                function of a module, called for each as by `Module.apply`.
            weights: Values of a model on the meta device, read after `init`: a checkpoint of `save`, a file that ends
                in ``.safetensors``, ``.pt``, ``.pth`` or ``.bin``, a folder of safetensors files, or a state dict.

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
        source = source_of(model, self.recipe, init, weights)
        arranged = arrange(
            model, self._world, self.recipe, sample, partial(copied, world=self._world, recipe=self.recipe)
        )
        if source is not None:
            fill(source, arranged.held, self._world)
        self._optimizer = optimizers.made(optimizer, arranged, self._world)
        self._passes = self._passes_of(arranged)
        self._made_with_state = bool(self._optimizer.state)
        self._replicas = replicas_of(self.recipe.local, self.recipe.asynchronous, model, self._world)
        if self.recipe.ema.decay is not None:
            stages = [arranged.held] if arranged.stages is None else [part for _, part in arranged.stages.modules]
            self._average = AveragedWeights(arranged.held, stages, self.recipe.ema.decay)
        draw_apart(self._world)
        self._schedule = optimizers.schedule_of(schedule, self._optimizer)
        self._loss, self._weight = loss, weight
        if arranged.stages is None:
            draw_within(arranged.module, self._world)
            arranged.module.register_forward_hook(lambda _, __, output: self._weights.guard(output))
        if arranged.whole is not None:
            self._first_step = FirstStep(arranged, self._world, self.recipe).register()
        return arranged.module, self._optimizer

    def loader(self, loader: Any) -> Any:
        """Return a loader of this rank's part of each batch, on its device.

        The global batches are those of one process. Each loop over the result is an epoch.

        Args:
            loader: torch's `DataLoader`, `paceline.data.Loader`, or a generator of whole batches. `save` and `load`
                include its position. The same object has the same position in each call; a new object replaces one
                that the program no longer has.

        Raises:
            UsageError: The loader or its batches cannot be split, or a loaded checkpoint is of another data set.
                While batches are read: a sample depends on previously read samples.
        """
        checked = self.recipe.checks.samples and not self.recipe.apart
        return loaders.split(
            loader,
            self._world,
            self._loader_positions,
            self._planned,
            self._processing_batch,
            dealt=self._dealt,
            checked=checked,
        )

    def split(self, batch: Any) -> list[Any]:
        """Split a batch (a tensor, or a tuple, list or dict of them) into its micro-batches along dimension 0."""
        return split_batch(batch, self._planned)

    @contextmanager
    def micro_step(self, *, last: bool | None = None) -> Iterator[None]:
        """Run forward and backward of a micro-batch in the run's precision; the last micro-step reduces gradients.

        Args:
            last: Whether `step()` comes next; None: the last one is the recipe's number of micro-batches.
        """
        passes = self._ready()
        if passes.begun == 0 and self._replicas is not None:
            self._replicas.begin()
        losses = self._weights.count
        with self._statistics_check.active("micro-step"), passes.micro_step(last):
            yield
            if self._weights.count == losses and self._world.mesh is not None:
                raise UsageError(
                    "micro_step() ended without engine.backward(loss), and other ranks may wait for the gradients of "
                    "this rank; call backward() in each micro-step, and decide by a value that all ranks have, such as "
                    "engine.loss(), whether to skip a batch"
                )

    def backward(self, loss: Any, weight: Any = None) -> None:
        """Run backward of one micro-batch; several losses of one micro-step are added.

        Args:
            loss: A scalar tensor, a mean over `weight` items.
            weight: A number or a scalar tensor, the same for all losses of a micro-step; None: all micro-batches
                count alike. If the weights of a step sum to 0, its gradient is 0.
        """
        self._tell_own_loss()
        self._ready().backward(loss, weight)

    def train_batch(self, inputs: Any, target: Any) -> None:
        """Run forward and backward of this rank's batch, in micro-batches, on any layout.

        Args:
            inputs: The input of the model: a tensor with samples in dimension 0.
            target: The second argument of the loss, after the output.
        """
        passes = self._ready()
        if self._loss is None:
            raise UsageError(
                "train_batch() needs the loss: setup(model, optimizer, loss=torch.nn.functional.cross_entropy)"
            )
        with self._statistics_check.active("micro-step"):
            if self._first_step is not None and self._first_step.due:
                self._checked_loss = self._first_step.of_batch(inputs, target, self._loss, self._weight)
            self._first_step = None
            if passes.begun == 0 and self._replicas is not None:
                self._replicas.begin()
            passes.train(inputs, target, self._checked_loss or self._loss, self._weight)

    def loss(self) -> float:
        """Return the loss of this step's batch over all ranks; with `[asynchronous]` that of this rank.

        Call it before `step()`.
        """
        return float(self._weights.mean(self._world.group("pp")))

    def step(self) -> Step:
        """Clip the gradients, update the parameters, and advance the schedule.

        Raises:
            UsageError: The gradients of this step were not reduced, or the program does not continue the epoch in
                which the loaded checkpoint was saved.
        """
        passes = self._ready()
        self._check_not_averaged("step")
        self._loader_positions.check_continued()
        arranged = passes.arranged
        if not passes.synced:
            raise UsageError(
                f"step() after {passes.begun} of {self._planned} micro-steps: gradients are not reduced yet; "
                "pass last=True to the last micro_step() of a shorter step"
            )
        if not self._weights.count:
            raise UsageError("step() without a loss: call engine.backward(loss) or engine.train_batch() before step()")
        arranged.check_used()
        for check in self._loss_checks:
            check.check(self._weights.own_sum)
        if self._replica_check is not None:
            self._replica_check.before_step(self._batches)
        result = self._update(arranged)
        if self._replica_check is not None:
            self._replica_check.after_step()
        self._optimizer.zero_grad()
        passes.clear()
        self._statistics_check.end("batch")
        self._tried += 1
        if self._replicas is not None:
            self._replicas.after(self._tried, result.applied)
        return result

    def _update(self, arranged: Arranged) -> Step:
        """Scale and clip the gradients of a model, and take the optimizer step."""
        clip, scale = self.recipe.optimizer.clip_norm, self.scale
        value = scale.value if scale else 1.0
        factor: Any = 1 / value
        norm: Any = None
        as_they_are = clip is None and scale is None and gradients.is_one(factor)
        held = [] if as_they_are else [p.grad for p in arranged.held.parameters() if p.grad is not None]
        if clip is not None or scale is not None:
            norm = gradients.norm_of(arranged.counted(), self.device, self._world.group("pp")) * factor
        finite = scale is None or bool(norm.isfinite())
        if clip is not None:
            factor = factor * (clip / (norm + 1e-6)).clamp(max=1.0)
        if finite:
            gradients.multiply(held, factor)
            with self._stepping(), self._common_draws.active():
                self._optimizer.step()
            self.steps += 1
            if self._average is not None:
                self._average.update()
            for _ in range(1 if self._replicas is None else self._replicas.due()):
                if self._schedule is not None:
                    self._schedule.step()
        if scale is not None:
            scale.update(finite)
        return Step(applied=finite, norm=norm, loss_scale=value)
