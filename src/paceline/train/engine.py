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

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.errors import UsageError
from paceline.train import checkpoints, gradients, loaders, optimizers
from paceline.train.arrange import Arranged, arrange
from paceline.train.parallel.asynchronous import Rounds, Staleness
from paceline.train.recipe import Recipe, of
from paceline.train.replicas import Replicas, replicas_of
from paceline.train.world import draw_apart, draw_within, join, leave, meet

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step came to."""

    applied: bool  # False: gradients were not finite, and with fp16 the step was skipped
    norm: Any  # of the gradient before clipping, a scalar tensor; None where neither clipping nor fp16 asked for it
    loss_scale: float  # 1 without fp16


class Engine:
    """Runs a loop on a layout; one a process."""

    def __init__(self, recipe: Recipe | Mapping[str, Any] | Namespace | str | Path | None = None) -> None:
        """Join the other ranks.

        Args:
            recipe: Settings: a `Recipe`, tables as TOML has them (`{"layout": "dp=2"}`), the flags of
                `recipe.add_arguments`, or a TOML file; None: one process in fp32.

        Raises:
            UsageError: Something is not allowed, or there are more or fewer ranks than the layout takes.
        """
        self._owns_group = meet()
        settings = self.recipe = of(recipe)
        self.world = join(settings.layout)
        settings.precision.check_device(self.world.device)
        settings.precision.set_matmul()
        self.scale = settings.precision.scale()
        self.steps = 0  # applied ones
        self._places = loaders.Places()
        self._planned = settings.memory.micro_batches
        self._dealt = settings.asynchronous.max_staleness is not None
        group = None if self._dealt else self.world.data_group
        self._weights = gradients.Weights(self._planned, self.world.device, group, not settings.apart)
        self._replicas: Replicas | None = None
        self._tried = 0  # steps, skipped ones too
        self._begun = 0  # micro-steps of this step
        self._synced = False
        self._made_with_state = False  # whether the optimizer has state before a step, as Adagrad has
        self._arranged: Arranged | None = None
        self._optimizer: Any = None
        self._schedule: Any = None
        self._loss: Loss | None = None
        self._weight: Callable[[Any], Any] | None = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    @property
    def device(self) -> Any:
        """The `torch.device` of this rank."""
        return self.world.device

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that prints."""
        return self.world.rank == 0

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
        if self._arranged is not None:
            raise UsageError("setup() was called before, and an engine trains one model; make an Engine for each")
        optimizers.check_maker(optimizer)
        self._arranged = arrange(model, self.world, self.recipe, sample)
        self._optimizer = optimizers.made(optimizer, self._arranged.held)
        self._made_with_state = bool(self._optimizer.state)
        self._replicas = replicas_of(self.recipe, model, self.world)
        draw_apart(self.world)
        self._schedule = optimizers.schedule_of(schedule, self._optimizer)
        self._loss, self._weight = loss, weight
        if self._arranged.stages is None:
            draw_within(self._arranged.module, self.world)
            self._arranged.module.register_forward_hook(lambda _, __, output: self._weights.guard(output))
        return self._arranged.module, self._optimizer

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
        arranged = self._ready()
        if arranged.stages is not None:
            raise UsageError(
                "with pp the pipeline runs forward and backward: use train_batch() in place of micro_step()"
            )
        if self._begun == 0 and self._replicas is not None:
            self._replicas.begin()
        self._begun += 1
        self._weights.begin()
        self._synced = self._begun >= self._planned if last is None else last
        arranged.set_sync(self._synced)
        with self.recipe.precision.context(self.device.type):
            yield

    def backward(self, loss: Any, weight: Any = None) -> None:
        """Run backward of one micro-batch; several losses of one micro-step add up.

        Args:
            loss: A scalar tensor, a mean over `weight` things.
            weight: A number or a scalar tensor, the same for all losses of a micro-step; None: all micro-batches count
                alike. Where the weights of a step sum to 0 its gradient is 0.
        """
        self._weights.take(weight)
        loss = self._weights.multiplied(loss, weight)
        self._weights.add(loss)
        (loss * self.scale.value if self.scale else loss).backward()

    def train_batch(self, inputs: Any, target: Any) -> None:
        """Run forward and backward of this rank's batch, in micro-batches, on any layout.

        Args:
            inputs: What the model is called with: a tensor, samples in dimension 0.
            target: What the loss is called with beside the output.
        """
        arranged = self._ready()
        if self._loss is None:
            raise UsageError(
                "train_batch() needs the loss: setup(model, optimizer, loss=torch.nn.functional.cross_entropy)"
            )
        if arranged.stages is not None:
            self._run_stages(arranged.stages, inputs, target)
            return
        for part, wanted in zip(self.split(inputs), self.split(target), strict=True):
            with self.micro_step():
                output = arranged.module(part)
                # With [layers] an output is on the last device.
                loss = self._loss(output, wanted.to(output.device) if self.recipe.layers.devices else wanted)
                self.backward(loss, self._weight(wanted) if self._weight else None)

    def _run_stages(self, stages: Any, inputs: Any, target: Any) -> None:
        """Run a batch through the pipeline."""
        scale = self.scale.value if self.scale else 1.0
        for wanted in self.split(target):
            self._weights.begin()
            self._weights.take(self._weight(wanted) if self._weight else None)
        loss_of = partial(_scaled_loss, self._weights, self._loss, self._weight, scale)
        with self.recipe.precision.context(self.device.type), self.world.drawing("model"):
            losses = stages.run(inputs, target, loss_of)
        for loss in losses:
            self._weights.add(loss / scale)
        self._begun, self._synced = self._planned, True

    def loss(self) -> float:
        """Return the loss of this step's batch over all ranks (with `[asynchronous]` this one's), before `step()`."""
        return float(self._weights.mean(self.world.group("pp")))

    def step(self) -> Step:
        """Clip, update the parameters, and go on to the next step.

        Raises:
            UsageError: The gradients of this step were not reduced.
        """
        arranged = self._ready()
        if not self._synced:
            raise UsageError(
                f"step() after {self._begun} of {self._planned} micro-steps: gradients are not reduced yet; "
                "say micro_step(last=True) for the last one of a short step"
            )
        arranged.check_used()
        held = [p.grad for p in arranged.held.parameters() if p.grad is not None]
        result = self._update(held)
        self._optimizer.zero_grad()
        self._weights.clear()
        self._tried += 1
        if self._replicas is not None:
            self._replicas.after(self._tried, result.applied)
        self._begun, self._synced = 0, False
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

    def meet(self) -> None:
        """With `[asynchronous]`, wait until all ranks are here; then all have the same parameters. Else nothing."""
        if self._replicas is not None:
            self._replicas.meet()

    @property
    def staleness(self) -> Staleness | None:
        """How old this rank's updates were when they were applied; None without `[asynchronous]`."""
        return self._replicas.staleness() if isinstance(self._replicas, Rounds) else None

    def save(self, folder: str | Path) -> None:
        """Write model, optimizer and progress; all ranks call it, each writes its part.

        Args:
            folder: Made where it is not there; what it holds of an earlier checkpoint is replaced.

        Raises:
            UsageError: Replicas that train alone have not met.
        """
        arranged = self._ready()
        if self._replicas is not None:
            self._replicas.can_save(self._tried)
        state = checkpoints.state(
            arranged.held, self._optimizer, self._replicas, stepped=self.steps > 0 or self._made_with_state
        )
        checkpoints.save(Path(folder), {**state, "random": self.world.draws()}, self._progress())

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, of any layout; after `setup()`, by all ranks. Raises UsageError: there is none."""
        held, updates = self._ready().held, (self._optimizer, self._replicas)
        progress = checkpoints.read_progress(Path(folder), self._progress())
        stepped, same = progress["steps"] > 0 or self._made_with_state, progress["drawn_as"] == self.world.drawn_as
        state, random = checkpoints.state(held, *updates, stepped=stepped), self.world.draws()
        checkpoints.load(Path(folder), {**state, "random": random}, same_ranks=same)
        checkpoints.apply(state, held, *updates, stepped=stepped)
        self.steps, self._tried = int(progress["steps"]), int(progress["tried_steps"])
        if self.scale is not None:
            self.scale.load_state_dict(progress["scale"])
        if self._schedule is not None:
            self._schedule.load_state_dict(checkpoints.shaped(self._schedule.state_dict(), progress["schedule"]))
        self.world.draw_on(progress["random"], random if same else None)
        self._places.load(progress["loaders"])

    def _progress(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside model and optimizer."""
        found: dict[str, Any] = {"steps": self.steps, "tried_steps": self._tried, "loaders": self._places.state()}
        found["random"], found["drawn_as"] = self.world.drawn(), self.world.drawn_as
        if self._replicas is not None:
            found["replicas"] = self.world.layout.dp
        if self.scale is not None:
            found["scale"] = self.scale.state_dict()
        if self._schedule is not None:
            found["schedule"] = self._schedule.state_dict()
        return found

    def _ready(self) -> Arranged:
        if self._arranged is None:
            raise UsageError("the engine has no model yet: call setup(model, optimizer) first")
        return self._arranged

    def close(self) -> None:
        """Leave the other ranks; the end of a `with Engine(...)` does it."""
        import torch

        if self._replicas is not None:
            self._replicas.close()
        if self._owns_group and torch.distributed.is_initialized():
            leave()


def _scaled_loss(weights: Any, loss: Any, weight: Any, scale: float, output: Any, wanted: Any) -> Any:
    """Return the loss of a micro-batch of a pipeline as its backward takes it."""
    found, own = loss(output, wanted), weight(wanted) if weight else None
    weights.guard_from(own, output)
    return weights.multiplied(found, own) * scale
