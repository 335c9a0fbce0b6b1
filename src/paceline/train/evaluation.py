"""Mean loss and other means over a data set without gradients, the same on any layout as on one process.

All ranks go through the same batches, drawn with the random numbers of rank 0. Each rank with different samples takes a
part of a batch; parts can differ in size by one sample. A rank without samples takes the first sample of the batch with
weight 0, because all ranks must call the model. With `pp` a batch goes through the stages one after the other, and with
`cp` each rank takes its positions.

Values of parts and batches are combined as a weighted mean. A measure can be a mean over the items that `weight`
counts, such as tokens, or a mean over samples. To find out which, the measure is also computed on two halves of a part.
The weighting is right if the weighted mean of the two values is the value of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.arrange import Arranged
from paceline.train.batch_samples import count_samples, is_splittable, select_samples
from paceline.train.batches import loaders
from paceline.train.parallel import cp
from paceline.train.passes import called
from paceline.train.ranks import agreement, random_states
from paceline.train.ranks.world import World

# Maps an output and a target to a scalar: a mean over the items that `weight` counts, or over samples.
Measure = Callable[[Any, Any], Any]
Weight = Callable[[Any], Any]  # maps a target to the number of items that a measure averages over
_WEIGHTINGS = 2  # by `weight`, and by the number of samples
_CHECKED_BATCHES = 3  # at least
_RELATIVE_TOLERANCE = 1e-4  # for rounding; larger for values in bf16 or fp16


def evaluated(
    arranged: Arranged,
    world: World,
    loader: Any,
    measures: Mapping[str, Measure],
    weight: Weight | None,
    context: Callable[[], AbstractContextManager[Any]],
) -> dict[str, float]:
    """Return the weighted mean of each measure over all batches of a loader; a collective of all ranks.

    Args:
        arranged: The model on this rank.
        world: The ranks.
        loader: Yields whole batches, each a pair of inputs and target; or a `paceline.data.Loader`, with the
            batch size of all ranks together.
        measures: The measures by name.
        weight: Returns how much a target counts; None: its number of samples.
        context: Returns the context of a forward pass.

    Raises:
        UsageError: Ranks were given different batches, there was no batch, or ranks have parts of batches and a measure
            is no weighted mean over them.
    """
    import torch

    if isinstance(loader, loaders.OnDevice):
        raise UsageError(
            "evaluate() splits batches itself; pass the original loader instead of the result of engine.loader()"
        )
    _check_statistics(arranged.held, world)
    means = _WeightedMeans(measures, weight)
    with _evaluating(arranged), _as_rank_0(world), torch.no_grad():
        for number, batch in enumerate(_of_whole_batches(loader, world)):
            _check_pair(batch)
            if not number:
                _check_same(batch, world)
            (inputs, target), count = _part(loaders.moved(batch, world.device), world)
            with context():
                output = _output(arranged, inputs)
                values = [measure(output, target) for measure in measures.values()] if output is not None else []
                if values and count:
                    means.add(output, target, values, count)
    return means.over_ranks(world)


class _WeightedMeans:
    """The sums of measures under both weightings, and how often each weighting was wrong."""

    def __init__(self, measures: Mapping[str, Measure], weight: Weight | None) -> None:
        import torch

        self._measures, self._weight, self._batches = measures, weight, 0
        # Tensors on the host, where each value is read anyway.
        self._sums = torch.zeros(len(measures), _WEIGHTINGS, dtype=torch.float64)
        self._weights = torch.zeros(1, _WEIGHTINGS, dtype=torch.float64)
        self._mismatches = torch.zeros(len(measures), _WEIGHTINGS)

    def add(self, output: Any, target: Any, values: Sequence[Any], count: int) -> None:
        """Add the values of the measures for a part of a batch, and check the weightings."""
        import torch

        weights = self._weights_of(target, count)
        own = torch.tensor([[float(value)] for value in values], dtype=torch.float64)
        self._sums += torch.where(weights > 0, own * weights, 0.0)  # a mean over no items is NaN
        self._weights += weights
        halves = self._halves(output, target, count)
        if halves and (self._batches < _CHECKED_BATCHES or self._decides(halves)):
            for row, measure in enumerate(self._measures.values()):
                self._mismatches[row] += _mismatches(measure, values[row], halves)
        self._batches += 1

    def over_ranks(self, world: World) -> dict[str, float]:
        """Return the mean of each measure over all ranks; a collective."""
        sums, weights, mismatches = (_summed(values, world) for values in (self._sums, self._weights, self._mismatches))
        if not weights[0, 0]:
            raise UsageError("evaluate() got no batch, or all targets have weight 0")
        in_parts, found = world.layout.samples > 1, dict[str, float]()
        for row, name in enumerate(self._measures):
            column = _weighting(name, mismatches[row].tolist(), in_parts=in_parts)
            found[name] = float(sums[row, column] / weights[0, column])
        return found

    def _weights_of(self, target: Any, count: int) -> Any:
        """Return the weight of a target of some samples under each weighting, a tensor of shape [2]."""
        import torch

        own = float(self._weight(target)) if self._weight else float(count)
        return torch.tensor([own, float(count)], dtype=torch.float64)

    def _halves(self, output: Any, target: Any, count: int) -> list[tuple[Any, Any, Any]]:
        """Return output, target and weights of two halves of a part; empty if the part cannot be split."""
        if count < 2 or not is_splittable(output) or _count(output) != count or _count((output, target)) != count:
            return []
        middle = max(1, count // 3)  # halves of different sizes, which the weightings weigh differently
        slices = [(slice(0, middle), middle), (slice(middle, count), count - middle)]
        halves = [(*select_samples((output, target), count, which), size) for which, size in slices]
        return [(output, target, self._weights_of(target, size)) for output, target, size in halves]

    def _decides(self, halves: Sequence[tuple[Any, Any, Any]]) -> bool:
        """Return whether these halves can show which weighting is right, if no earlier ones have shown it."""
        import torch

        (_, _, first), (_, _, second) = halves
        undecided = (self._mismatches == 0).all(dim=1).any()
        return bool(undecided) and not torch.isclose(first[0] * second[1], first[1] * second[0])


def _mismatches(measure: Measure, value: Any, halves: Sequence[tuple[Any, Any, Any]]) -> Any:
    """Return 1 for each weighting with which the values of two halves do not give the value of the part, else 0.

    If the measure raises an exception for a half, the result is 0 for both weightings.
    """
    import torch

    total = torch.zeros(_WEIGHTINGS, dtype=torch.float64)
    try:
        for output, target, weights in halves:
            total += torch.where(weights > 0, weights * float(measure(output, target)), 0.0)
    except Exception:
        return torch.zeros(_WEIGHTINGS)
    dtype = value.dtype if getattr(value, "is_floating_point", bool)() else torch.float32
    tolerance = max(_RELATIVE_TOLERANCE, 8 * torch.finfo(dtype).eps)
    means, expected = total / sum(weights for _, _, weights in halves), torch.full_like(total, float(value))
    return (~torch.isclose(means, expected, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True)).float()


def _weighting(name: str, mismatches: Sequence[float], *, in_parts: bool) -> int:
    """Return the weighting of a measure: 0 for `weight`, 1 for the number of samples.

    Args:
        name: The name of the measure.
        mismatches: For each weighting, the number of parts of batches for which it was wrong.
        in_parts: Whether ranks have parts of a batch. If not, the values of whole batches are combined by `weight` even
            if both weightings were wrong.

    Raises:
        UsageError: Both weightings were wrong, and ranks have parts of a batch.
    """
    right = next((weighting for weighting, count in enumerate(mismatches) if not count), None)
    if right is None and in_parts:
        raise UsageError(
            f"evaluate() cannot combine {name} over ranks: it is a mean neither over samples nor over the items that "
            "weight(target) counts; give a measure that is such a mean, or evaluate in one process"
        )
    return right or 0


def _summed(values: Any, world: World) -> Any:
    """Return the sum of a tensor over all ranks that hold other samples, positions or stages."""
    import torch

    found = values.to(world.device)
    for axes in (("dp", "shard", "cp"), ("pp",)):
        if (group := world.group(*axes)) is not None:
            torch.distributed.all_reduce(found, group=group)
    return found


def _of_whole_batches(loader: Any, world: World) -> Any:
    """Return a loader that yields the same batches on all ranks; our own would give each rank other samples."""
    from paceline.data import Loader
    from paceline.data.loader.loader import part_of, settings_of

    if world.mesh is None or not isinstance(loader, Loader) or settings_of(loader)["world"] == 1:
        return loader
    return part_of(loader, 0, 1)


def _check_statistics(model: Any, world: World) -> None:
    """Check that no BatchNorm uses the statistics of a batch in evaluation, of which each rank has only a part."""
    from torch.nn.modules.batchnorm import _BatchNorm

    layers = ((name, part) for name, part in model.named_modules() if isinstance(part, _BatchNorm))
    name = next((name for name, part in layers if part.running_mean is None), None)
    if name is not None and world.layout.samples > 1:
        raise UsageError(
            f"evaluate(): {name} has no running statistics, so it would use those of a rank's part of a batch; set "
            "track_running_stats=True, or evaluate in one process"
        )


def _check_pair(batch: Any) -> None:
    is_sequence = isinstance(batch, tuple | list)
    if not is_sequence or len(batch) != 2:
        raise UsageError(
            f"evaluate() needs batches of inputs and target, but got a {type(batch).__name__}"
            f"{f' of {len(batch)}' if is_sequence else ''}; give the loader a collate_fn that returns (inputs, target)"
        )


def _check_same(batch: Any, world: World) -> None:
    if not agreement.is_same(agreement.digest(batch), world.everyone):
        raise UsageError(
            "ranks got different batches to evaluate: the loader uses its own random generator; use the same seed "
            "on all ranks"
        )


@contextmanager
def _evaluating(arranged: Arranged) -> Iterator[None]:
    """Put a model into evaluation mode inside the context, and restore the mode of each of its modules at the end.

    Stages of a pipeline stay gathered after a forward pass, for their backward pass; here they are split again.
    """
    from torch.distributed.fsdp import FSDPModule

    stages = [] if arranged.stages is None else [stage for _, stage in arranged.stages.modules]
    models = [arranged.held, *stages]
    modes = [(part, part.training) for model in models for part in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
            if isinstance(part, FSDPModule):
                part.reshard()


@contextmanager
def _as_rank_0(world: World) -> Iterator[None]:
    """Use the random states of rank 0 inside the context, and restore the states of this rank at the end.

    So an evaluation changes neither the order of the training samples nor the random numbers of the training.
    """
    import torch

    own = {**random_states.of_torch(world.device), **random_states.of_host()}
    first = [own]
    if world.mesh is not None:
        torch.distributed.broadcast_object_list(first, 0)
        random_states.put(first[0], world.device)
    try:
        yield
    finally:
        random_states.put(own, world.device)


def _part(batch: Any, world: World) -> tuple[Any, int]:
    """Return this rank's part of a batch and its number of samples, 0 if the part is the first sample with weight 0.

    Raises:
        UsageError: The batch cannot be split into samples, and ranks have different samples.
    """
    parts, part = world.layout.samples, world.sample_part
    count = _count(batch) if parts == 1 else count_samples(batch)
    first, last = count * part // parts, count * (part + 1) // parts
    found = batch if parts == 1 else select_samples(batch, count, slice(first, last) if last > first else slice(0, 1))
    if world.layout.cp > 1:
        found = cp.part_of(found, world.position("cp"), world.layout.cp)
    return found, last - first


def _count(batch: Any) -> int:
    """Return the number of samples in a batch, or 1 if it cannot be split into samples."""
    try:
        return count_samples(batch)
    except UsageError:
        return 1


def _output(arranged: Arranged, inputs: Any) -> Any:
    """Return the output of the model; with pp, None on ranks other than that of the last stage."""
    if arranged.stages is not None:
        return arranged.stages.forward(inputs)
    return called(arranged.held, inputs)
