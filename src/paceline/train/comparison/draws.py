"""Random numbers of the comparison: the split model's draws are recorded, and the whole model draws the same ones.

A TorchDispatchMode intercepts each operation that draws. A draw of the whole model is assembled from those of
all ranks, along the dimensions in which their shapes differ, such as samples or heads. With `pp` the draws of a
stage come after those of the stages before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, permutations
from typing import Any

from paceline.train.parallel import pp
from paceline.train.ranks import random_states
from paceline.train.ranks.world import World

_DRAWS = (
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli", "bernoulli_",
    "normal", "normal_", "uniform_", "exponential_", "random_", "geometric_", "cauchy_", "log_normal_", "multinomial",
    "poisson", "native_dropout",
)  # fmt: skip
_EXCHANGES = ("c10d", "_c10d_functional", "c10d_functional")
_AXES = ("samples", "cp", "tp")

Place = tuple[int, int, int]  # indices of a rank on `_AXES`


class NotReplayable(Exception):
    """The whole model cannot repeat the draws of the ranks.

    The whole model draws something that the ranks did not draw, or ranks with different samples each draw what one
    process draws only once.
    """


class DrawnApart(Exception):
    """Ranks of one tp group draw different random numbers for the same activations."""


class Exchanged(Exception):
    """Raised if the model or its loss exchanges tensors between ranks itself."""


@dataclass
class Recorded:
    """The random draws of one rank."""

    draws: list[tuple[int, int, str, Any]] = field(default_factory=list)  # micro-batch, stage, operation, result
    at: tuple[int, int] = (0, 0)  # micro-batch and stage of the forward that runs
    forwards: Counter[int] = field(default_factory=Counter)  # number of forward passes of each stage

    def begin(self, stage: int, *_: Any) -> None:
        """Record that a stage begins a forward pass; called as a forward pre-hook."""
        if not pp.is_preparing():
            self.at = (self.forwards[stage], stage)
            self.forwards[stage] += 1


@dataclass(frozen=True)
class Draw:
    """One random draw: the name of its operation, and the result on each rank."""

    name: str
    of_place: dict[Place, Any]


@contextmanager
def recording(recorded: Recorded, stages: Any) -> Iterator[None]:
    """Record the random draws of forward passes inside the context.

    Args:
        recorded: Receives the draws.
        stages: The pipeline stages on this rank; None without pp.
    """

    def draw(name: str, result: Any, _: Any) -> None:
        if not _is_again():
            value = result[1] if name == "native_dropout" else result
            value = value.to_local() if hasattr(value, "to_local") else value
            recorded.draws.append((*recorded.at, name, value.detach().clone().cpu()))

    of_stages = [] if stages is None else stages.modules
    handles = [module.register_forward_pre_hook(partial(recorded.begin, number)) for number, module in of_stages]
    try:
        with _mode(draw):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _is_again() -> bool:
    """Return whether a block is recomputed in backward, or runs only to find the shapes of its outputs."""
    import torch

    return torch._C._current_graph_task_id() != -1 or pp.is_preparing()


def replaying(draws: Sequence[Draw]) -> Any:
    """Return a context in which random operations return the given draws (those of `together`), in order."""
    left = iter(draws)

    def draw(name: str, result: Any, args: Any) -> None:
        drawn = next(left, None)
        into = result[1] if name == "native_dropout" else result
        if drawn is None or drawn.name != name:
            raise NotReplayable(f"{name} {list(into.shape)} was not drawn on the ranks")
        into.copy_(_joined(drawn, into.shape))
        if name == "native_dropout":
            result[0].copy_(args[0] * into / (1 - args[1]))

    return _mode(draw, _exchanged)


def _exchanged(name: str) -> None:
    raise Exchanged(name)


def _mode(draw: Any, exchanges: Any = None) -> Any:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Draws(TorchDispatchMode):
        """Intercepts the operations that draw random numbers."""

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            name = function.overloadpacket.__name__
            if exchanges is not None and function.namespace in _EXCHANGES and not random_states.is_apart():
                exchanges(str(function))
            drawn = torch.Tag.nondeterministic_seeded in function.tags and name in _DRAWS
            if drawn and not random_states.is_apart():
                draw(name, result, args)
            return result

    return Draws()


def without_attention_dropout() -> Any:
    """Return a context in which fused attention has no dropout, because its mask exists only inside the kernel."""
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode

    class NoDropout(TorchFunctionMode):
        """Turns off the dropout of attention."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if function is scaled_dot_product_attention:
                options |= dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False))
                args, options["dropout_p"] = args[:3], 0.0
            return function(*args, **options)

    return NoDropout()


def together(recorded: Recorded, world: World, *, joined: bool) -> list[Draw]:
    """Return the draws for the whole model; a collective of all ranks.

    Args:
        recorded: The draws of this rank.
        world: The ranks.
        joined: Whether the whole model has the samples of all ranks; otherwise it has those of this rank.
    """
    import torch

    place = (world.sample_part, world.position("cp"), world.position("tp"))
    every: list[Any] = [None] * world.layout.ranks
    torch.distributed.all_gather_object(every, (place, recorded.draws))
    found: dict[tuple[int, int, int], Draw] = {}
    for place, draws in every:
        if not joined and place[0] != world.sample_part:
            continue
        for (part, stage), group in groupby(draws, key=lambda each: each[:2]):
            for number, (_, _, name, value) in enumerate(group):
                found.setdefault((part, stage, number), Draw(name, {})).of_place[place] = value
    return [found[key] for key in sorted(found)]


def _joined(draw: Draw, shape: Any) -> Any:
    """Return the draws of all ranks assembled to one tensor of the given shape."""
    values, first = draw.of_place, next(iter(draw.of_place.values()))
    if first.ndim != len(shape):
        raise NotReplayable(f"{draw.name} has {first.ndim} dimensions on the ranks and {len(shape)} in the whole model")
    grown = [number for number, size in enumerate(first.shape) if size != shape[number]]
    sizes = [len({place[axis] for place in values}) for axis in range(len(_AXES))]
    for axes in permutations([axis for axis, size in enumerate(sizes) if size > 1], len(grown)):
        if all(first.shape[number] * sizes[axis] == shape[number] for number, axis in zip(grown, axes, strict=True)):
            found = values
            for axis in range(len(_AXES)):
                found = _along(found, axis, dict(zip(axes, grown, strict=True)).get(axis), draw.name)
            (value,) = found.values()
            return value
    raise NotReplayable(f"{draw.name} {list(first.shape)} of the ranks does not make {list(shape)}")


def _along(values: dict[Place, Any], axis: int, dimension: int | None, name: str) -> dict[Place, Any]:
    """Return the values without one axis of the ranks: joined along a dimension, or one of them if all are equal."""
    import torch

    rest: dict[Any, list[Any]] = {}
    for place in sorted(values):
        rest.setdefault((*place[:axis], 0, *place[axis + 1 :]), []).append(values[place])
    if dimension is not None:
        return {place: torch.cat(parts, dimension) for place, parts in rest.items()}
    for parts in rest.values():
        if not all(torch.equal(part, parts[0]) for part in parts):
            if _AXES[axis] == "tp":
                raise DrawnApart(f"{name} {list(parts[0].shape)}")
            raise NotReplayable(f"{name} {list(parts[0].shape)} differs between ranks along {_AXES[axis]}")
    return {place: parts[0] for place, parts in rest.items()}
