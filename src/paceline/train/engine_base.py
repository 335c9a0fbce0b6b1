"""The operations of an engine outside of steps: joining the ranks, evaluation, and checkpoints."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paceline.core.errors import UsageError
from paceline.train import gradients
from paceline.train.arrange import Arranged
from paceline.train.average import AveragedWeights
from paceline.train.checkpoints import folder as checkpoints
from paceline.train.checkpoints.background import BackgroundSaves
from paceline.train.checkpoints.export import export
from paceline.train.checkpoints.loader_positions import LoaderPositions
from paceline.train.comparison.first_step import FirstStep
from paceline.train.comparison.loss_check import CheckedLoss, OwnBatchCheck, SplitLossCheck
from paceline.train.comparison.parameter_checks import OutsideParameters, ReplicaCheck
from paceline.train.comparison.sample_mixing import SampleMixing
from paceline.train.comparison.statistics_check import StatisticsCheck
from paceline.train.evaluation import evaluated
from paceline.train.parallel import dtensor_patches
from paceline.train.parallel.asynchronous import Rounds, Staleness
from paceline.train.parallel.replicas import Replicas
from paceline.train.passes import Loss, Passes
from paceline.train.ranks import failures, random_states
from paceline.train.ranks.random_states import CommonDraws
from paceline.train.ranks.world import World, join, leave, meet
from paceline.train.recipe import Recipe, of


class EngineBase:
    """Base class of `Engine` with the operations outside of steps."""

    def __init__(self, recipe: Recipe | Mapping[str, Any] | Namespace | str | Path | None = None) -> None:
        """Join the other ranks.

        Args:
            recipe: Settings: a `Recipe`, tables as TOML has them (`{"layout": "dp=2"}`), the command-line arguments
                of `recipe.add_arguments`, or a TOML file; None: one process in fp32.

        Raises:
            UsageError: A setting is not allowed, or the number of ranks differs from that of the layout.
        """
        self._owns_group = meet()
        settings = self.recipe = of(recipe)
        self._world = join(settings.layout, settings.process_group.timeout_s)
        failures.explain_by(partial(dtensor_patches.explain, layout=settings.layout))
        settings.precision.check_device(self._world.device)
        settings.precision.set_matmul()
        self.scale = settings.precision.scale()
        self.steps = 0  # applied ones
        self._common_draws = CommonDraws(None if settings.apart else self._world.data_group, self._world.device)
        self._background_saves = BackgroundSaves()
        self._loader_positions = LoaderPositions()
        self._planned = settings.micro_batches
        _tell_micro_batches(settings, self.is_first)
        self._dealt = settings.asynchronous.max_staleness is not None
        group = None if self._dealt else self._world.data_group
        self._weights = gradients.Weights(self._planned, self._world.device, group, not settings.apart)
        checks = (kind.of(self._world, settings) for kind in (OwnBatchCheck, SplitLossCheck))
        self._loss_checks = [check for check in checks if check is not None]
        self._replicas: Replicas | None = None
        self._average: AveragedWeights | None = None
        self._tried, self._own_losses = 0, 0  # steps with skipped ones; losses of the user's own training loop
        self._batches = 0  # that the program has read from `loader`
        self._is_stepping = False  # whether `step` of the engine runs the optimizer
        self._made_with_state = False  # whether the optimizer has state before a step, as Adagrad has
        self._passes: Passes | None = None
        self._first_step: FirstStep | None = None  # the comparison on the first batch, until it has run
        self._replica_check: ReplicaCheck | None = None
        self._optimizer: Any = None
        self._schedule: Any = None
        self._loss: Loss | None = None
        has_parts = self._world.data_group is not None and not settings.apart
        is_on = has_parts and settings.checks.first_step
        self._statistics_check = StatisticsCheck(settings.layout, is_on=is_on)
        has_samples = settings.layout.samples > 1 and settings.layout.cp == 1  # with cp, loops are checked already
        self._sample_mixing = SampleMixing(settings.layout, is_on=is_on and has_samples and self.is_first)
        self._checked_loss: CheckedLoss | None = None  # used in training on ranks with different samples
        self._weight: Callable[[Any], Any] | None = None

    def _tell_own_loss(self) -> None:
        """Print once that the loss of the user's own training loop is not compared with that of one process."""
        if self.recipe.checks.first_step and not self._dealt and self.is_first and self._own_losses == 0:
            _tell_own_loss(self.recipe)
        self._own_losses += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._check_replicas()
            self.close()
        elif (explained := dtensor_patches.explain(error, self._world.layout)) is not None:
            raise explained from error

    @property
    def world(self) -> World:
        """The ranks. A program that reads it is expected to split its batches itself."""
        OwnBatchCheck.note_split()
        return self._world

    @property
    def device(self) -> Any:
        """The `torch.device` of this rank."""
        return self._world.device

    @property
    def is_first(self) -> bool:
        """Whether this rank is rank 0, which prints."""
        return self._world.rank == 0

    def evaluate(self, loader: Any, **measures: Callable[[Any, Any], Any]) -> dict[str, float]:
        """Return the mean loss over all batches of a loader, as one process computes it; all ranks call it.

        Args:
            loader: Yields whole batches, inputs and target: a `DataLoader`, a `paceline.data.Loader` or a list; not
                the result of `engine.loader`. Batches may differ in size.
            measures: Further means by name, each a function of output and target, such as an accuracy.

        Returns:
            ``loss`` and the other measures, weighted by `weight(target)` or the number of samples.

        Raises:
            UsageError: There is no loss, or ranks were given different batches.
        """
        loss = {} if self._loss is None else {"loss": self._loss}
        if not loss and not measures:
            raise UsageError(
                "evaluate() needs the loss: setup(model, optimizer, loss=torch.nn.functional.cross_entropy)"
            )
        self._check_replicas()
        return evaluated(self._ready().arranged, self._world, loader, {**loss, **measures}, self._weight, self._context)

    def _check_replicas(self) -> None:
        """Check that ranks with the same parameters have the same values; a collective."""
        if self._replica_check is not None and (self._average is None or not self._average.in_use):
            self._replica_check.compare_values()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the averages of its parameters inside, for `evaluate`, `export` and calls; all ranks call it.

        Raises:
            UsageError: The recipe has no `[ema]`.
        """
        self._ready()
        if self._average is None:
            raise UsageError("averaged(): there is no average; set ema.decay (--ema), such as 0.999")
        with self._average.swapped():
            yield

    def _check_not_averaged(self, what: str) -> None:
        if self._average is not None and self._average.in_use:
            raise UsageError(f"{what}() inside `with engine.averaged():`: the model has the averages; call it after")

    def meet(self) -> None:
        """With `[asynchronous]`, wait for all ranks and give them the same parameters; otherwise do nothing."""
        if self._replicas is not None:
            self._replicas.meet()

    @property
    def staleness(self) -> Staleness | None:
        """The staleness of this rank's updates when they were applied; None without `[asynchronous]`."""
        return self._replicas.staleness() if isinstance(self._replicas, Rounds) else None

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None, *, wait: bool = True) -> None:
        """Write model, optimizer and progress; all ranks call it, each writes its part.

        At most one checkpoint is written at a time: a call waits for an earlier one.

        Args:
            folder: Made where it is not there; an earlier checkpoint in it is replaced when the new one is whole.
            extra: State of the program's own, which `load` returns: tensors, numbers and text in dicts and lists.
                Rank 0's is written.
            wait: False: return as soon as all is copied to host memory; a thread writes the checkpoint while training
                goes on. An error is raised by the next save, by `load` or by `close`.

        Raises:
            UsageError: Replicas that train alone have not met.
            EnvironmentFault: This checkpoint, or one that was written in the background, could not be written.
        """
        arranged = self._ready().arranged
        self._check_not_averaged("save")
        self._check_replicas()
        if self._replicas is not None:
            self._replicas.can_save(self._tried)
        stepped = self.steps > 0 or self._made_with_state
        with checkpoints.without_steps(self._optimizer):
            state = checkpoints.state(arranged.held, self._optimizer, self._replicas, stepped=stepped)
        tensors = {**state, **_averages(self._average), "random": self._world.draws()}
        contents = checkpoints.contents_of(tensors, self._progress(), extra)
        if wait:
            self._background_saves.finish()
            checkpoints.save(Path(folder), contents)
        else:
            self._background_saves.start(Path(folder), contents, tells=self.is_first)

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Continue from a checkpoint of any layout; all ranks call it after `setup()`.

        Returns:
            The `extra` that `save` was given; empty if there was none.

        Raises:
            UsageError: There is no complete checkpoint, or it is of another model.
        """
        self._background_saves.finish()
        self._check_not_averaged("load")
        held, updates = self._ready().arranged.held, (self._optimizer, self._replicas)
        progress = checkpoints.read_progress(Path(folder), self._progress())
        stepped, same = progress["steps"] > 0 or self._made_with_state, progress["drawn_as"] == self._world.drawn_as
        state, random = checkpoints.state(held, *updates, stepped=stepped), self._world.draws()
        tensors = {**state, **_averages(self._average), "random": random}
        frozen = checkpoints.load(Path(folder), tensors, same_ranks=same)
        checkpoints.apply(state, held, *updates, stepped=stepped, frozen=frozen)
        self.steps, self._tried = int(progress["steps"]), int(progress["tried_steps"])
        if self._average is not None:
            self._average.updates = int(progress["ema_updates"])
        if self.scale is not None:
            self.scale.load_state_dict(progress["scale"])
        if self._schedule is not None:
            groups = self._optimizer.param_groups
            own = self._schedule.state_dict()
            self._schedule.load_state_dict(checkpoints.schedule_of_groups(own, progress["schedule"], groups))
        self._world.draw_on(progress["random"], random if same else None, progress.get("host_random"))
        self._loader_positions.load(progress["loaders"])
        return checkpoints.read_extra(Path(folder))

    def export(self, path: str | Path) -> None:
        """Write the whole model as one state dict, with the names it had before `setup()`; all ranks call it.

        Args:
            path: Ends in ``.safetensors``, or in ``.pt``, ``.pth`` or ``.bin`` for `torch.load`.

        Raises:
            UsageError: The path has another ending.
        """
        self._check_replicas()
        export(self._ready().arranged.held, self._world, Path(path))

    def _progress(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint needs besides the model and the optimizer."""
        found: dict[str, Any] = {"steps": self.steps, "tried_steps": self._tried}
        found["loaders"] = self._loader_positions.state()
        found["random"], found["drawn_as"] = self._world.drawn(), self._world.drawn_as
        found["host_random"] = random_states.of_host()
        if self._replicas is not None:
            found["replicas"] = self._world.layout.dp
        if self._average is not None:
            found["ema_updates"] = self._average.updates
        if self.scale is not None:
            found["scale"] = self.scale.state_dict()
        if self._schedule is not None:
            found["schedule"] = self._schedule.state_dict()
        return found

    @contextmanager
    def _processing_batch(self, batch: Any) -> Iterator[None]:
        """Count a batch that the program has read, and check inside the context which models it calls."""
        self._batches += 1
        if self._first_step is not None and self._first_step.due:
            self._first_step.batch = batch
        with self._statistics_check.active("batch"), self._sample_mixing.watched(batch):
            yield

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Allow the optimizer to step inside the context."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    def _passes_of(self, arranged: Arranged) -> Passes:
        """Return the forward and backward passes of a model. They search losses for parameters outside of the model."""
        if hasattr(self._optimizer, "_optimizer_step_pre_hooks"):  # a class of the program may not call its base class
            self._optimizer.register_step_pre_hook(partial(_check_stepping, self))
        if arranged.whole is not None:
            self._replica_check = ReplicaCheck(self._world, arranged, self._optimizer)
        stages = [part for _, part in arranged.stages.modules] if arranged.stages is not None else []
        self._statistics_check.know([each for each in (arranged.held, arranged.whole, *stages) if each is not None])
        outside = OutsideParameters(self._world, self.recipe.checks.first_step, arranged.held, self._optimizer)
        return Passes(arranged, self._weights, self._planned, self._context, self.scale, outside.search)

    def _ready(self) -> Passes:
        if self._passes is None:
            raise UsageError("the engine has no model yet: call setup(model, optimizer) first")
        return self._passes

    @contextmanager
    def _context(self) -> Iterator[None]:
        """Run passes in the run's precision; with pp, random numbers come from each stage's own stream."""
        with ExitStack() as stack:
            stack.enter_context(self.recipe.compute.explained())
            stack.enter_context(dtensor_patches.explain_mixed_tensors(self._world.layout))
            stack.enter_context(self.recipe.precision.context(self.device.type))
            if self._world.layout.pp > 1:
                stack.enter_context(self._world.drawing("model"))
            yield

    def close(self) -> None:
        """Wait for a checkpoint that is being written, then leave the other ranks; the end of a `with` block does it.

        Raises:
            EnvironmentFault: The checkpoint could not be written.
        """
        import torch

        self._statistics_check.end("batch")
        if self._replicas is not None:
            self._replicas.close()
        self._background_saves.close()
        if self._owns_group and torch.distributed.is_initialized():
            leave()


def _averages(average: AveragedWeights | None) -> dict[str, Any]:
    """Return the average of the weights as a checkpoint stores it."""
    return {} if average is None else {"ema": average.values}


def _check_stepping(engine: EngineBase, *_: Any) -> None:
    """Raise a UsageError if the program calls the method `step` of the optimizer.

    torch calls the method to create the state of an optimizer into which it loads a checkpoint.
    """
    if engine._is_stepping:
        return
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.distributed.checkpoint.state_dict":
        frame = frame.f_back
    if frame is None:
        raise UsageError(
            "the program calls optimizer.step(), which does not clip, count, scale or average as the recipe says; "
            "call engine.step() instead, and leave optimizer.zero_grad() out"
        )


def _tell_micro_batches(recipe: Recipe, is_first: bool) -> None:
    """Print the number of micro-batches that a pipeline takes by default, on the first rank."""
    layout = recipe.layout
    if is_first and layout.pp > 1 and recipe.memory.micro_batches is None:
        sys.stderr.write(
            f"paceline: layout {layout}: each batch is split into {recipe.micro_batches} micro-batches, 2 per "
            "rank of the pipeline; --accumulate (memory.micro_batches) sets another number\n"
        )


def _tell_own_loss(recipe: Recipe) -> None:
    """Print that the loss of the user's own training loop is not compared, and what it must be."""
    layout = recipe.layout
    what = "samples" if layout.cp == 1 else "positions" if layout.samples == 1 else "samples and positions"
    if layout.samples * layout.cp > 1:
        sys.stderr.write(
            f"paceline: layout {layout}: the loop computes the loss itself, so the loss is not compared with "
            f"one process. It must be a mean over the {what} of a batch, or over what weight= counts, and its factors "
            "must be the same on all ranks; train_batch() checks a loss that is passed to setup(loss=)\n"
        )
