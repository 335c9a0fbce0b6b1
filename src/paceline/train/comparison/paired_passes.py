"""The passes that the comparison runs on both models: those of a batch with its loss, or of one forward call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from paceline.core.errors import UsageError
from paceline.train import gradients
from paceline.train.arrange import Arranged
from paceline.train.batch_samples import count_samples, has_lists, join_batches, select_samples, split_batch
from paceline.train.comparison import samples
from paceline.train.comparison.differences import relative
from paceline.train.comparison.draws import NotReplayable
from paceline.train.optimizers import is_split
from paceline.train.parallel import cp, hugging_face, pp
from paceline.train.passes import Loss, Passes, called
from paceline.train.ranks import random_states
from paceline.train.ranks.world import World

Key = tuple[str, int]  # the name of a module, and the number of its call, from 0
Outputs = dict[Key, list[Any]]  # in the order in which modules returned


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a comparison: the ranks, both models, and the choice of samples."""

    world: World
    arranged: Arranged
    whole: Any  # the copy of the model from before it was split
    planned: int  # the number of micro-batches
    joined: bool  # whether the whole model has the samples of all ranks at once
    short: bool  # whether some samples of each micro-batch are enough
    context: Callable[[], AbstractContextManager[Any]]

    def samples_of(self, available: int) -> int:
        """Return how many samples of a rank are compared: all, or with `short` half a batch of one rank in total."""
        ranks = self.world.layout.ranks
        return max(2, available // (2 * ranks)) if self.short else available


class PairedPasses(Protocol):
    """The passes of both models that are compared."""

    def on_ranks(self) -> None:
        """Run the split model."""

    def on_one(self) -> None:
        """Run the whole model."""

    def losses(self) -> list[tuple[str, Any, Any]]:
        """Return, for each scalar result, its name, its value in the split model, and its value in the whole model."""


class BatchPasses:
    """Runs both models on a batch of `train_batch`."""

    def __init__(self, attempt: Attempt, given: tuple[Any, Any], loss: Loss, weight: Any) -> None:
        """Select the samples to compare from the batch; a collective of all ranks.

        Raises:
            NotJoinable: The samples of the ranks cannot be joined to one batch.
        """
        world, held = attempt.world, attempt.arranged.held
        parts = split_batch(given, attempt.planned)
        try:
            counts = [count_samples(given) // len(parts)] * len(parts)  # the parts alone may not show the number
        except UsageError as error:
            raise samples.NotJoinable(str(error)) from error
        most = counts[0] if has_lists(given) else attempt.samples_of(counts[0])
        pairs = [select_samples(part, count, slice(most)) for part, count in zip(parts, counts, strict=True)]
        self._counts = [min(count, most) for count in counts]
        if attempt.arranged.stages is None:
            pairs = pairs[:2] if attempt.short else pairs
        self._planned, self._pairs = len(pairs), pairs
        sized = zip(pairs, self._counts, strict=False)
        self._whole_pairs = [samples.whole(pair, count, world, joined=attempt.joined) for pair, count in sized]
        self._attempt, self._loss, self._weight = attempt, loss, weight
        self._arranged = replace(attempt.arranged, module=held)
        if attempt.arranged.stages is not None:
            self._arranged = replace(self._arranged, stages=attempt.arranged.stages.again())
        self._on_ranks: Any = None
        self._on_one: Any = None

    def on_ranks(self) -> None:
        """Run the batch through the engine."""
        world = self._attempt.world
        weights = gradients.Weights(self._planned, world.device, world.data_group)
        run = Passes(self._arranged, weights, self._planned, self._context)
        inputs, target = join_batches(self._pairs, self._counts[: len(self._pairs)])
        guarded = self._arranged.module.register_forward_hook(lambda _, __, output: weights.guard(output))
        try:
            run.train(inputs, target, self._loss, self._weight)
        finally:
            guarded.remove()
        self._on_ranks = weights.mean(world.group("pp"))

    def _context(self) -> Any:
        return self._attempt.context()

    def on_one(self) -> None:
        """Run the batch on the whole model, as one process does."""
        import torch

        total, weights = 0.0, 0.0
        with _collect_gradients(self._attempt.arranged, self._attempt.whole), cp.unsplit():
            for inputs, target in self._whole_pairs:
                with self._attempt.context():
                    loss = self._loss(called(self._attempt.whole, inputs), target)
                weight = 1.0 if self._weight is None else float(self._weight(target))
                if weight:
                    (loss * weight).backward()
                    total, weights = total + weight * float(loss.detach()), weights + weight
        sums = torch.tensor([total, weights], dtype=torch.float64, device=self._attempt.world.device)
        group = self._attempt.world.group("dp", "shard")
        if not self._attempt.joined and group is not None:
            with random_states.apart():
                torch.distributed.all_reduce(sums, group=group)
        self._on_one = sums[0] / sums[1]
        for parameter in self._attempt.whole.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense() / sums[1].to(parameter.grad.real.dtype)

    def losses(self) -> list[tuple[str, Any, Any]]:
        """Return the loss of the split model and the loss of the whole model."""
        return [("the loss", self._on_ranks, self._on_one)]


@contextmanager
def _collect_gradients(arranged: Arranged, whole: Any) -> Iterator[None]:
    """Add gradients that the model gets inside the context to those of its copy.

    A loss with a penalty on the weights may use the parameters of the model instead of those of the copy. The
    gradients of the model are restored.
    """
    own = [(name, each, each.grad) for name, each in arranged.held.named_parameters() if not is_split(each)]
    for _, each, _ in own:
        each.grad = None
    arranged.set_sync(False)
    try:
        yield
    finally:
        copies = dict(whole.named_parameters())
        for name, each, before in own:
            if each.grad is not None and name in copies:
                gradient = copies[name].grad
                copies[name].grad = each.grad if gradient is None else gradient + each.grad
            each.grad = before


class ForwardPasses:
    """Runs both models on one call of the user's training loop; the loss is a randomly weighted sum of the outputs."""

    def __init__(self, attempt: Attempt, given: tuple[Any, Any], known: Sequence[int]) -> None:
        """Select the samples to compare from the inputs; a collective of all ranks.

        Args:
            attempt: The attempt.
            given: The positional and keyword arguments of the call.
            known: Likely numbers of samples of the call.

        Raises:
            NotJoinable: The samples of the ranks cannot be joined to one batch.
        """
        count = samples.count(given, known)
        most = min(count, attempt.samples_of(count))
        try:
            self._given = samples.cut(given, count, most)
        except (UsageError, ValueError) as error:
            raise samples.NotJoinable(str(error)) from error
        self._whole_given = samples.whole(self._given, most, attempt.world, joined=attempt.joined)
        self._attempt = attempt
        self._outputs: list[Any] = []
        self._scalars: list[tuple[Any, Any]] = []

    def on_ranks(self) -> None:
        """Run the forward pass of the split model; its backward runs in `on_one`."""
        self._attempt.arranged.set_sync(True)
        args, kwargs = self._given
        with self._attempt.context():
            self._outputs = list(samples.numbers(self._attempt.arranged.held(*args, **kwargs)))

    def on_one(self) -> None:
        """Run forward and backward of the whole model, and in the first call also backward of the split model."""
        args, kwargs = self._whole_given
        with self._attempt.context(), cp.unsplit():
            outputs = list(samples.numbers(self._attempt.whole(*args, **kwargs)))
        if len(outputs) != len(self._outputs) and self._outputs:
            raise NotReplayable(f"the whole model returns {len(outputs)} tensors, the split one {len(self._outputs)}")
        self._backward(outputs)
        self._outputs = []

    def _backward(self, outputs: list[Any]) -> None:
        import torch

        world = self._attempt.world
        ranks = 1 if world.data_group is None else torch.distributed.get_world_size(world.data_group)
        of_one, of_ranks = [], []
        for number, whole in enumerate(outputs):
            weights = _weights(whole, number)
            own = self._outputs[number] if self._outputs else None
            if not whole.ndim and self._attempt.joined and world.layout.samples > 1:
                continue  # a loss over all samples, which ranks cannot compare
            if whole.requires_grad:
                of_one.append((whole * weights).sum())
            if own is not None and own.requires_grad:
                found = self._own(own, whole, weights)
                # An output without samples, such as a parameter, is whole on each rank.
                is_whole = self._attempt.joined and world.layout.samples > 1 and own.shape == whole.shape
                factor = 1 if is_whole else ranks / (1 if own.ndim else world.layout.cp)
                of_ranks.append((own * found[1]).sum() * factor)
            if own is not None and not own.ndim:
                self._scalars.append((_mean(own, world.group("cp")), whole))
        if not of_one:
            raise NotReplayable("the model returns no tensor with a gradient, except a loss over all samples")
        if of_ranks:
            with random_states.apart():
                sum(of_ranks[1:], of_ranks[0]).backward()
        sum(of_one[1:], of_one[0]).backward()

    def _own(self, own: Any, whole: Any, weights: Any) -> tuple[Any, Any]:
        """Return this rank's slice of an output of the whole model, and the same slice of its weights in the loss."""
        pieces = [
            list(samples.slices(own.shape, value, self._attempt.world, joined=self._attempt.joined))
            for value in (whole, weights)
        ]
        pairs = list(zip(*pieces, strict=True))
        return min(pairs, key=lambda pair: relative(own, pair[0])) if pairs else (own, _weights(own, 0))

    def losses(self) -> list[tuple[str, Any, Any]]:
        """Return the scalar outputs of both models."""
        return [(f"output {number}", *pair) for number, pair in enumerate(self._scalars)]


def _weights(value: Any, number: int) -> Any:
    import torch

    with random_states.apart():
        drawn = torch.randn(value.shape, generator=torch.Generator().manual_seed(number)) / max(1, value.numel()) ** 0.5
    return drawn.to(value.device, value.dtype)


def _mean(value: Any, group: Any) -> Any:
    import torch

    found = value.detach().clone()
    if group is not None:
        with random_states.apart():
            torch.distributed.all_reduce(found, group=group)
        found /= torch.distributed.get_world_size(group)
    return found


def exact_context(floats: list[Any], precision: Any, world: World, *, rounded: bool) -> tuple[Any, int]:
    """Return a function that creates the context of a forward pass, in fp32 if possible, and the bytes of an element.

    Args:
        floats: The floating-point inputs.
        precision: The precision of the recipe.
        world: The ranks.
        rounded: Whether parameters are gathered in a 16-bit format.
    """
    import torch

    if rounded or any(value.element_size() < 4 for value in floats):
        return (lambda: precision.context(world.device.type)) if precision.autocast else nullcontext, 2
    return lambda: torch.autocast(world.device.type, enabled=False), 4


@contextmanager
def traced(model: Any, *, deep: bool) -> Iterator[Outputs]:
    """Yield a dict that receives the outputs of a model, or of all its modules.

    Args:
        model: The whole model, or the part that a rank holds, with the same names.
        deep: Whether the outputs of all modules are kept; otherwise only those of the model itself.
    """
    found: Outputs = {}
    calls: Counter[str] = Counter()
    named = model.named_modules() if deep else [("", model)]
    parts = [(name, part) for name, part in named if not hugging_face.is_of_stage(part)]
    handles = [part.register_forward_hook(partial(_note, found, calls, name)) for name, part in parts]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def matched(own: Outputs, whole: Outputs, attempt: Attempt) -> Iterator[tuple[Key, Key, int, Any, Any]]:
    """Yield outputs of the split model with those of the whole model for the same samples.

    A model can call a module, or return a tensor, for each sample. The whole model then does so for the samples of all
    ranks.

    Yields:
        The key of a call in the split model and in the whole one, the number of the output, and the two outputs.
    """
    parts, part = attempt.world.layout.samples, attempt.world.sample_part
    calls, of_whole = (Counter(name for name, _ in outputs) for outputs in (own, whole))
    for (name, call), values in own.items():
        by_sample = attempt.joined and of_whole[name] == calls[name] * parts
        key = name, call + calls[name] * part * by_sample
        expected = whole.get(key, [])
        if attempt.joined and len(expected) == len(values) * parts:
            expected = expected[len(values) * part :]
        for number, (one, other) in enumerate(zip(values, expected, strict=False)):
            yield (name, call), key, number, one, other


def _note(found: Outputs, calls: Counter[str], name: str, module: Any, inputs: Any, output: Any) -> None:
    import torch

    del module, inputs
    if (
        torch._C._current_graph_task_id() != -1 or pp.is_preparing()
    ):  # recomputed in backward, or run only to find shapes
        return
    found[name, calls[name]] = [value.detach().clone() for value in samples.numbers(output)]
    calls[name] += 1
