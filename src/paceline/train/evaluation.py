"""Mean loss and other means over a data set without gradients, the same on any layout as on one process.

All ranks go through the same batches, drawn with the random numbers of rank 0. Each rank with different samples takes a
part of a batch; parts can differ in size by one sample. A rank without samples takes the first sample of the batch with
weight 0, because all ranks must call the model. With `pp` a batch goes through the stages one after the other, and with
`cp` each rank takes its positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from paceline.core.errors import UsageError
from paceline.train import agreement, loaders, random_states
from paceline.train.arrange import Arranged
from paceline.train.batches import like
from paceline.train.parallel import cp
from paceline.train.passes import called
from paceline.train.world import World

Measure = Callable[
    [Any, Any], Any
]  # maps an output and a target to a scalar, a mean over the items that `weight` counts


def evaluated(
    arranged: Arranged,
    world: World,
    loader: Any,
    measures: Mapping[str, Measure],
    weight: Callable[[Any], Any] | None,
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
        UsageError: Ranks were given different batches, or there was no batch.
    """
    import torch

    if isinstance(loader, loaders.OnDevice):
        raise UsageError(
            "evaluate() splits batches itself; pass the original loader instead of the result of engine.loader()"
        )
    sums = torch.zeros(len(measures) + 1, dtype=torch.float64)  # on the host, where each value is read anyway
    with _evaluating(arranged.held), _as_rank_0(world), torch.no_grad():
        for number, batch in enumerate(_of_whole_batches(loader, world)):
            _check_pair(batch)
            if not number:
                _check_same(batch, world)
            (inputs, target), counts = _part(loaders.moved(batch, world.device), world)
            with context():
                output = _output(arranged, inputs)
                values = [measure(output, target) for measure in measures.values()] if output is not None else []
            if values:
                own = float(weight(target)) if weight else float(_count(target))
                if counts and own:  # the mean over nothing is NaN
                    sums += torch.tensor([own * float(value) for value in values] + [own], dtype=torch.float64)
    sums = sums.to(world.device)
    for axes in (("dp", "shard", "cp"), ("pp",)):
        if (group := world.group(*axes)) is not None:
            torch.distributed.all_reduce(sums, group=group)
    *totals, weights = sums.tolist()
    if not weights:
        raise UsageError("evaluate() got no batch, or all targets have weight 0")
    return {name: total / weights for name, total in zip(measures, totals, strict=True)}


def _of_whole_batches(loader: Any, world: World) -> Any:
    """Return a loader that yields the same batches on all ranks; our own would give each rank other samples."""
    from paceline.data import Loader
    from paceline.data.loader.loader import part_of, settings_of

    if world.mesh is None or not isinstance(loader, Loader) or settings_of(loader)["world"] == 1:
        return loader
    return part_of(loader, 0, 1)


def _check_pair(batch: Any) -> None:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise UsageError(
            f"evaluate() needs batches of inputs and target, but got a {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}; give the loader a collate_fn that "
            "returns (inputs, target)"
        )


def _check_same(batch: Any, world: World) -> None:
    if not agreement.is_same(agreement.digest(batch), world.everyone):
        raise UsageError(
            "ranks got different batches to evaluate: the loader uses its own random generator; use the same seed "
            "on all ranks"
        )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode inside the context, and restore the mode of each of its modules at the end."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _as_rank_0(world: World) -> Iterator[None]:
    """Use the random states of rank 0 inside the context, and restore this rank's own at the end."""
    import torch

    if world.mesh is None:
        yield
        return
    own = {**random_states.of_torch(world.device), **random_states.of_host()}
    first = [own]
    torch.distributed.broadcast_object_list(first, 0)
    random_states.put(first[0], world.device)
    try:
        yield
    finally:
        random_states.put(own, world.device)


def _part(batch: Any, world: World) -> tuple[Any, bool]:
    """Return this rank's part of a batch, and False if this is only the first sample with weight 0."""
    count, parts, part = _count(batch), world.layout.samples, world.sample_part
    first, last = count * part // parts, count * (part + 1) // parts
    found = _samples(batch, count, slice(first, last) if last > first else slice(0, 1))
    if world.layout.cp > 1:
        found = cp.part_of(found, world.position("cp"), world.layout.cp)
    return found, last > first


def _count(batch: Any) -> int:
    """Return the number of samples in a batch."""
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list):
        return next((found for value in batch if (found := _count(value))), 0)
    return int(batch.shape[0]) if getattr(batch, "ndim", 0) else 0


def _samples(batch: Any, count: int, which: slice) -> Any:
    if isinstance(batch, Mapping):
        return {key: _samples(value, count, which) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return like(batch, [_samples(value, count, which) for value in batch])
    return batch[which] if getattr(batch, "ndim", 0) and batch.shape[0] == count else batch


def _output(arranged: Arranged, inputs: Any) -> Any:
    """Return the output of the model; with pp, None on ranks other than that of the last stage."""
    if arranged.stages is not None:
        return arranged.stages.forward(inputs)
    return called(arranged.held, inputs)
