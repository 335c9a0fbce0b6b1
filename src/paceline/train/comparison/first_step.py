"""Compares the split model with the whole one on the first batch of a run: outputs, loss, gradients and buffers.

The model is copied before it is split. On the first batch some samples of each rank go through the split model,
forward and backward, in training mode, and the samples of all ranks go through the copy, with the same random
numbers. Elements must be equal up to rounding (`differences.py`). Otherwise the run ends with an error that
names the first module whose output differs, or the parameter whose gradient differs. Model and random numbers
are restored.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.errors import UsageError
from paceline.train import batch_norm
from paceline.train.arrange import Arranged, is_on_meta
from paceline.train.batch_samples import count_samples
from paceline.train.comparison import advice, differences, draws, rounding, samples, synced
from paceline.train.comparison.loss_check import CheckedLoss
from paceline.train.comparison.paired_passes import (
    Attempt,
    BatchPasses,
    ForwardPasses,
    Outputs,
    PairedPasses,
    exact_context,
    matched,
    traced,
)
from paceline.train.comparison.restoration import StateCheck, add_noise, begin_alike, restore_models, undo_writes
from paceline.train.parallel import cp_check
from paceline.train.passes import Loss
from paceline.train.ranks.world import World, mesh_axes
from paceline.train.recipe import Recipe
from paceline.train.unmodified.state import plain_settings

_ATTEMPTS = (
    (True, True),
    (False, True),
    (True, False),
    (False, False),
)  # values of `joined` and `short` of an `Attempt`, tried in this order
_MOST_NAMES = 16  # values of which each is tried alone, to name the one that matters
_EXPECTED = (samples.NotJoinable, draws.NotReplayable)


@dataclass(frozen=True)
class Difference:
    """A value in which the two models differ."""

    what: str  # a description for messages
    module: str
    times: float  # the difference as a multiple of the tolerance
    share: float  # the difference as a share of the expected norm
    place: int  # position in the order of computation


@dataclass
class Results:
    """The results of both models for the same samples."""

    own: Outputs
    whole: Outputs
    passes: PairedPasses
    losses: list[tuple[str, Any, Any]]  # of the first run of `passes`; later runs change those in `passes`
    gradients: dict[str, Any]  # of the whole model
    buffers: dict[str, Any]  # of the whole model
    own_state: dict[str, Any]  # the changed values of the split model, other than parameters and buffers, by name
    whole_state: dict[str, Any]


class FirstStep:
    """Compares the first step of the arranged model with the same step of a whole copy of the model."""

    def __init__(self, arranged: Arranged, world: World, recipe: Recipe) -> None:
        """Prepare the comparison.

        Args:
            arranged: The model on this rank, with the copy of the whole model.
            world: The ranks.
            recipe: The settings of the run.
        """
        self._arranged, self._world, self._recipe = arranged, world, recipe
        self.batch: Any = None  # the batch that this rank has read last
        self._whole = arranged.whole
        self._name = type(arranged.whole).__name__
        self._sharded = "shard" in mesh_axes(world.layout)
        self._busy = False
        self._bytes = 4  # bytes of an element of the format in which both models compute
        self._replay: list[draws.Draw] = []
        self._buffers: list[tuple[Any, Any]] = []
        self._settings = {name: plain_settings(part) for name, part in arranged.held.named_modules()}
        self._state = StateCheck((arranged.module, arranged.held, self._whole))

    @property
    def due(self) -> bool:
        """Whether the comparison has still to run."""
        return self._whole is not None and not self._busy

    def register(self) -> FirstStep:
        """Register a hook that runs the comparison before the first forward pass in training, and return `self`.

        The hook serves training loops of the user; `train_batch` calls `of_batch`.
        """
        handle: Any = None

        def before(module: Any, args: Any, kwargs: Any) -> None:
            import torch

            if self.due and module.training and torch.is_grad_enabled():
                self.of_forward(args, kwargs)
            if self._whole is None and handle is not None:
                handle.remove()

        handle = self._arranged.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        return self

    def of_batch(self, inputs: Any, target: Any, loss: Loss, weight: Any) -> CheckedLoss | None:
        """Run the comparison on a batch of `train_batch`.

        Returns:
            The loss that is also checked in later steps, or None if it cannot be called more often than in training.

        Raises:
            UsageError: The models differ.
        """
        self._state.functions = (loss, weight)
        iterators = self._state.iterators()
        self._compare((inputs, target), lambda attempt: BatchPasses(attempt, (inputs, target), loss, weight))
        if iterators or self._world.layout.samples == 1:
            return None
        held = self._arranged.held
        return CheckedLoss(loss, weight, self._world.layout, [*held.parameters(), *held.buffers()])

    def of_forward(self, args: Any, kwargs: Any) -> None:
        """Run the comparison on a call of the model.

        Raises:
            UsageError: The models differ.
        """
        known = _known_counts(self.batch, self._recipe.micro_batches)
        self._compare((args, kwargs), lambda attempt: ForwardPasses(attempt, (args, kwargs), known))

    def _compare(self, given: Any, make: Callable[[Attempt], PairedPasses]) -> None:
        self._busy = True
        iterators = self._state.iterators(self._arranged.held)
        if iterators:
            self._tell(f"it uses the iterator {iterators[0]}, whose position cannot be restored")
            self._whole = None
            return
        _copy_changes(self._whole, self._arranged.held, self._settings)
        rounded = self._recipe.precision.dtype() is not None and self._sharded
        context, self._bytes = exact_context(
            samples.floats(given), self._recipe.precision, self._world, rounded=rounded
        )
        if self._bytes == 4 and all(p.element_size() == 8 for p in self._whole.parameters()):
            self._bytes = 8
        first = Attempt(
            world=self._world,
            arranged=self._arranged,
            whole=self._whole,
            planned=self._recipe.micro_batches,
            joined=True,
            short=True,
            context=context,
        )
        try:
            with self._recipe.compute.uncompiled(), cp_check.postponed():
                self._attempts(first, make)
        finally:
            self._whole, self.batch, self._busy = None, None, False
            self._arranged.set_sync(True)

    def _attempts(self, first: Attempt, make: Callable[[Attempt], PairedPasses]) -> None:
        """Run the comparison in the first possible way of `_ATTEMPTS`."""
        apart = not (batch_norm.is_shared(self._arranged.held))
        why = ""
        for joined, short in _ATTEMPTS:
            if not joined and (not apart or self._world.layout.samples == 1):
                continue
            attempt = replace(first, joined=joined, short=short)
            with restore_models([self._arranged.held, self._whole], self._world), add_noise(self._arranged.held):
                synced.give_values(self._arranged.held, self._whole, self._world)
                failed = self._attempt(attempt, make)
            if failed is None:
                return
            why = f"{why}; {failed}" if why and failed not in why else failed
        self._tell(why)

    def _attempt(self, attempt: Attempt, make: Callable[[Attempt], PairedPasses]) -> str | None:
        """Run the comparison in one way; return the reason if that is not possible, otherwise None."""
        self._buffers = [(b, b.clone()) for model in (self._arranged.held, self._whole) for b in model.buffers()]
        results, why = self._agreed(lambda: self._both(attempt, make, deep=False))
        if results is None:
            return why
        found = list(self._differences(results, attempt, {}))
        if self._any(found):
            noise = self._noise(results, attempt)
            found = list(self._differences(results, attempt, noise))
        if self._any(found):
            self._refuse(found, attempt, make)
        self._check_state(results, attempt, make)
        return None

    def _both(self, attempt: Attempt, make: Callable[[Attempt], PairedPasses], *, deep: bool) -> Results:
        """Run both models on the same samples with the same random numbers."""
        recorded = draws.Recorded()
        passes = make(attempt)
        held = self._arranged.held
        recording = draws.recording(recorded, self._arranged.stages)
        with self._start(held, deep=deep) as (own_state, own), recording, _explained(attempt, self._name):
            passes.on_ranks()
        if self._sharded:
            self._arranged.check_used()  # discard its record of this pass, which is not the first step
        drawn = draws.together(recorded, self._world, joined=attempt.joined)
        with self._start(self._whole, deep=deep) as (whole_state, whole), draws.replaying(drawn):
            passes.on_one()
        self._replay = drawn
        if not attempt.joined:
            synced.summed(self._whole, self._world.group("dp", "shard"))
        gradients = {name: p.grad for name, p in self._whole.named_parameters() if p.requires_grad}
        buffers = {name: value.clone() for name, value in self._whole.named_buffers()}
        return Results(own, whole, passes, passes.losses(), gradients, buffers, own_state, whole_state)

    @contextmanager
    def _start(self, model: Any, *, deep: bool) -> Iterator[tuple[dict[str, Any], Outputs]]:
        """Start a pass of a model from the same state, and restore the state at the end.

        Yields:
            The changed values by name, which are there at the end, and the outputs of the model or of all its modules.
        """
        other = self._whole if model is self._arranged.held else self._arranged.held
        with (
            undo_writes(model, other),
            begin_alike(model, self._buffers, self._world),
            self._state.restored(model) as values,
            traced(model, deep=deep) as outputs,
        ):
            yield values, outputs

    def _check_state(self, results: Results, attempt: Attempt, make: Callable[[Attempt], PairedPasses]) -> None:
        """Compare the values that both passes changed, such as a running mean in an attribute.

        Raises:
            UsageError: A value differs from that of the whole model, and results of a later pass depend on it.
        """
        own = differences.names_of_differing(results.own_state, results.whole_state, self._bytes)
        names = sorted({name for each in _of_all_ranks(self._world, own) for name in each})

        def matters(which: Sequence[str]) -> bool:
            passes = make(attempt)
            first, second = self._state.run_twice(self._arranged.held, which, lambda: self._outputs_of(passes))
            named = dict(enumerate(first)), dict(enumerate(second))
            return any(_of_all_ranks(self._world, differences.names_of_differing(*named, self._bytes)))

        if names and matters(names):
            place = next((name for name in names[:_MOST_NAMES] if matters([name])), names[0])
            raise UsageError(advice.state_message(self._world.layout, self._name, place))

    def _outputs_of(self, passes: PairedPasses) -> list[Any]:
        """Run the split model, and return its outputs and losses."""
        with (
            begin_alike(self._arranged.held, self._buffers, self._world),
            traced(self._arranged.held, deep=False) as outputs,
        ):
            passes.on_ranks()
        return [*(value for key in outputs for value in outputs[key]), *(value for _, value, _ in passes.losses())]

    def _differences(self, results: Results, attempt: Attempt, noise: dict[str, float]) -> Iterator[Difference]:
        """Yield the values that differ beyond rounding; a collective of all ranks."""
        yield from self._of_outputs(results, attempt, noise)
        for name, own, expected in results.losses:
            yield from _difference(name, "", (own, expected), self._bytes, noise.get(name, 0.0))
        averaged = self._world.data_group if self._arranged.averages_later else None
        for name, own in synced.gradients(self._arranged.held, averaged):
            if name not in results.gradients:
                yield Difference(
                    f"the gradient of {name}, which is shared in the whole model,", _owner(name), 9e9, 1, 0
                )
                continue
            expected = results.gradients[name]
            expected = own * 0 if expected is None else synced.full(expected)
            what = f"the gradient of {name}"
            yield from _difference(what, _owner(name), (own, expected), self._bytes, noise.get(what, 0.0))
        if attempt.joined or self._world.layout.samples == 1:
            for name, own in self._arranged.held.named_buffers():
                expected = results.buffers.get(name)
                if expected is not None and own.shape == expected.shape and not own.is_complex():
                    yield from _difference(f"buffer {name}", _owner(name), (own, expected), self._bytes, 0.0)

    def _of_outputs(self, results: Results, attempt: Attempt, noise: dict[str, float]) -> Iterator[Difference]:
        order = {key: number for number, key in enumerate(results.whole)}
        for key, place, number, own, expected in matched(results.own, results.whole, attempt):
            if not own.ndim and self._world.layout.samples * self._world.layout.cp > 1:
                continue
            name = f"{key[0]}:{key[1]}:{number}"
            pieces = list(samples.slices(own.shape, expected, self._world, joined=attempt.joined))
            if not pieces and key[0]:
                continue  # inside a split part
            piece = min(pieces, key=lambda each: differences.relative(own, each), default=None)
            what = f"the output of {key[0] or self._name}"
            found = _difference(what, key[0], (own, piece), self._bytes, noise.get(name, 0.0))
            yield from (replace(each, place=order[place]) for each in found)

    def _noise(self, results: Results, attempt: Attempt) -> dict[str, float]:
        """Return the change that rounding causes in each output, loss and gradient of the whole model."""
        before = {name: None if grad is None else synced.full(grad).clone() for name, grad in results.gradients.items()}
        losses = {name: value for name, _, value in results.losses}
        first = _by_key(before, results.whole, losses)

        def again() -> dict[str, Any]:
            with self._start(self._whole, deep=False) as (_, whole), draws.replaying(self._replay):
                results.passes.on_one()
            if not attempt.joined:
                synced.summed(self._whole, self._world.group("dp", "shard"))
            found = {name: p.grad for name, p in self._whole.named_parameters() if p.requires_grad}
            return _by_key(found, whole, {name: value for name, _, value in results.passes.losses()})

        noise = rounding.measured(self._whole, self._bytes, first, again)
        results.gradients.update(before)
        return noise

    def _refuse(self, found: list[Difference], attempt: Attempt, make: Callable[[Attempt], PairedPasses]) -> None:
        """End the run with a message about the first difference.

        Raises:
            UsageError: Always.
        """
        results, _ = self._agreed(lambda: self._both(attempt, make, deep=True))
        if results is not None:
            outputs = list(self._of_outputs(results, attempt, {}))
            order = {key[0]: number for number, key in reversed(list(enumerate(results.whole)))}
            last = [replace(each, place=10**6 - order.get(each.module, 0)) for each in found if each.what != "the loss"]
            found = outputs or last or found
        first = min(found, key=lambda each: each.place, default=None)
        every = _of_all_ranks(self._world, None if first is None else (first.place, first.what, first.share))
        place, what, share = min(each for each in every if each is not None)
        raise UsageError(advice.difference_message(self._world.layout, self._name, what, share))

    def _agreed(self, run: Callable[[], Results]) -> tuple[Results | None, str]:
        """Run a function on all ranks; return its result and "", or None and the reason if a rank failed."""
        result, why = None, None
        try:
            result = run()
        except (draws.DrawnApart, draws.Exchanged) as error:
            why = (type(error).__name__, str(error))
        except _EXPECTED as error:
            why = ("", str(error))
        except UsageError as error:
            if self._arranged.stages is not None:
                raise
            why = (UsageError.__name__, str(error))
        except Exception as error:  # such as a model that takes batches of one size only
            if self._arranged.stages is not None:
                raise  # the ranks of other stages wait for this one in the schedule, so they cannot exchange results
            why = ("", f"{type(error).__name__}: {error}")
        failed = [each for each in _of_all_ranks(self._world, why) if each is not None]
        for kind, what in failed:
            if kind == UsageError.__name__:
                raise UsageError(what)
            if kind:
                message_of = advice.draws_message if kind == draws.DrawnApart.__name__ else advice.exchange_message
                raise UsageError(message_of(self._world.layout, self._name, what))
        return (None, failed[0][1]) if failed else (result, "")

    def _any(self, found: list[Difference]) -> bool:
        return any(_of_all_ranks(self._world, bool(found)))

    def _tell(self, why: str) -> None:
        if self._world.rank == 0:
            sys.stderr.write(f"paceline: {advice.no_comparison_message(self._world.layout, self._name, why)}\n")


def _known_counts(batch: Any, micro_batches: int) -> tuple[int, ...]:
    """Return the number of samples of a batch and of its micro-batches; empty if unknown."""
    try:
        count = count_samples(batch)
    except UsageError:
        return ()
    return count, count // micro_batches


@contextmanager
def _explained(attempt: Attempt, name: str) -> Iterator[None]:
    """Replace an error of a model that tp has split by one that names a way out; training would fail in the same way.

    Raises:
        UsageError: The model failed with all samples of this rank.
    """
    import torch

    try:
        yield
    except (UsageError, torch.OutOfMemoryError, *_EXPECTED, draws.DrawnApart, draws.Exchanged):
        raise
    except Exception as error:
        if attempt.short or attempt.world.layout.tp == 1:
            raise
        raise UsageError(advice.failure_message(attempt.world.layout, name, error)) from error


def _copy_changes(whole: Any, held: Any, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the copy the training modes, plain attributes, `requires_grad` and gradient hooks of the model.

    `copy.deepcopy` leaves out gradient hooks. The program may have changed the others after `setup`.

    Args:
        whole: The copy.
        held: The model.
        settings: The plain attributes of each submodule of the model after `setup`, by its name.
    """
    own = dict(held.named_modules())
    for name, part in whole.named_modules():
        if name in own:
            before, now = settings.get(name, {}), plain_settings(own[name])
            vars(part).update({key: value for key, value in now.items() if key not in before or before[key] != value})
    parameters = dict(held.named_parameters())
    for name, each in whole.named_parameters():
        if name in parameters:
            each.requires_grad_(parameters[name].requires_grad)
            for hook in (parameters[name]._backward_hooks or {}).values() if each.requires_grad else ():
                each.register_hook(hook)


def _difference(what: str, module: str, pair: tuple[Any, Any], item_bytes: int, noise: float) -> Iterator[Difference]:
    """Yield a `Difference` if two values differ by more than rounding: of the split model and of the whole model."""
    own, expected = pair
    if expected is None or own.shape != expected.shape:
        yield Difference(what, module, float("inf"), 1.0, 0)
        return
    times = differences.excess(own, expected, item_bytes if own.dtype.itemsize >= 4 else 2, noise)
    if times > 1:
        yield Difference(what, module, times, differences.relative(own, expected), 0)


def _of_all_ranks(world: World, value: Any) -> list[Any]:
    """Gather the values of all ranks; a collective."""
    import torch

    every: list[Any] = [None] * world.layout.ranks
    torch.distributed.all_gather_object(every, value)
    return every


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _by_key(gradients: dict[str, Any], outputs: Outputs, losses: dict[str, Any]) -> dict[str, Any]:
    """Return gradients, outputs and losses in one dict, with the keys by which `_difference` finds their rounding."""
    found = {f"the gradient of {name}": value for name, value in gradients.items()}
    for key, values in outputs.items():
        found |= {f"{key[0]}:{key[1]}:{number}": value for number, value in enumerate(values)}
    return found | losses


def copied(model: Any, world: World, recipe: Recipe) -> Any:
    """Return a copy of a model for the comparison; None if there is no comparison or the model cannot be copied."""
    if world.mesh is None or recipe.apart or recipe.precision.fp8 or not recipe.checks.first_step:
        return None
    found, why = None, "it was created on the meta device, so that no rank has a whole copy"
    if not is_on_meta(model):
        try:
            found = copy.deepcopy(model)
        except Exception as error:  # what deepcopy cannot copy is the model's own
            why = f"it cannot be copied ({type(error).__name__}: {error})"
    if found is None:
        if world.rank == 0:
            sys.stderr.write(f"paceline: {advice.no_comparison_message(world.layout, type(model).__name__, why)}\n")
        return None
    return found
