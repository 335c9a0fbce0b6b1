"""Checks of a model and a loss with `cp`, which gives each rank a part of each sequence.

- The model is checked in its first forward pass. The first positions of each rank's part, of one sample, go through the
  model twice: split over the ranks, and as one sequence on every rank. Outputs must be equal up to rounding. Constant
  parameters, such as position embeddings that start at zero, get noise during the check, because otherwise their effect
  would not show. Dropout is turned off. Everything is restored afterwards.
- The loss is checked in the first backward passes. In a training loop of the user, the loss gets the output for this
  rank's positions only. A loss that compares `output[:, :-1]` with `tokens[:, 1:]` then skips the last position of
  each part, and a loss of `output[:, -1]` uses only the last position of each part. In both cases, the positions with
  a zero gradient show the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.attribute_snapshot import AttributeSnapshot
from paceline.train.batch_samples import like
from paceline.train.parallel import cp
from paceline.train.ranks import agreement, random_states
from paceline.train.ranks.world import World

_POSITIONS = 64  # number of positions of each rank's part
_TOLERANCE, _TOLERANCE_16_BITS = 1e-4, 2e-2  # as a share of the norm of an output
_NOISE = 0.1
_CHECKED_LOSSES = 8  # more than one backward pass, because padding looks like a skipped position
_postponed: list[None] = []  # not empty: calls of a model are not checked


def check_first(module: Any, model: Any, world: Any) -> None:
    """Register a hook that compares the split model with whole sequences before the first forward pass.

    Args:
        module: The module that is called: the model, or a DDP replica of it.
        model: The model with its attention split.
        world: The ranks.
    """
    todo = [True]

    def look(_: Any, args: Any, kwargs: Any) -> None:
        if todo and not _postponed:
            todo.clear()
            _look(model, world, (args, kwargs))

    module.register_forward_pre_hook(look, prepend=True, with_kwargs=True)


@contextmanager
def postponed() -> Iterator[None]:
    """Leave the check to the first forward pass after this context."""
    _postponed.append(None)
    try:
        yield
    finally:
        _postponed.pop()


def check_losses(module: Any, world: World) -> None:
    """Register a hook that raises an error if the loss ignores a position at a boundary between two parts.

    The loss must ignore such a position in each of the first `_CHECKED_LOSSES` backward passes.

    Args:
        module: The module that is called.
        world: The ranks.
    """
    import torch

    results: list[bool] = []

    def check(gradient: Any) -> None:
        if len(results) >= _CHECKED_LOSSES:
            return
        results.append(_skips_positions(gradient, world.position("cp"), world.layout.cp))
        if len(results) == _CHECKED_LOSSES and all(results):
            raise UsageError(
                f"{world.layout}: the loss skips a position where the sequence is split between ranks, or uses only "
                "this position. With cp, the loss must be a mean over all positions of this rank: shift the targets in "
                "the data set instead of in the loss, or use shard or tp instead of cp. To train without this check, "
                "set first_step = false in the section [checks] of the recipe"
            )

    def register_check(called: Any, args: Any, kwargs: Any, output: Any) -> None:
        is_training = called.training and torch.is_grad_enabled() and not _postponed
        if not is_training or len(results) >= _CHECKED_LOSSES:
            return
        length = cp.length_of((args, kwargs))
        for value in _tensors(output):
            if value.requires_grad and cp.is_split(value, length):
                value.register_hook(check)

    module.register_forward_hook(register_check, with_kwargs=True)


def _skips_positions(gradient: Any, part: int, parts: int) -> bool:
    """Return whether only a boundary position has no gradient, or only a boundary position has one.

    Args:
        gradient: The gradient of an output, [batch, length, ...].
        part: The number of this rank's part.
        parts: The number of parts.
    """
    used = (gradient != 0).transpose(0, 1).flatten(1).any(1).tolist()
    ends = ([used] if part else []) + ([used[::-1]] if part < parts - 1 else [])
    return any(len(end) > 1 and (end[0] != end[1]) and (end[1] or not any(end[1:])) for end in ends)


def _look(model: Any, world: Any, given: Any) -> None:
    """Compare the outputs of the split model with those for whole sequences.

    Args:
        model: The model with its attention split.
        world: The ranks.
        given: Positional and keyword arguments of the forward pass.

    Raises:
        UsageError: The outputs differ on any rank, or they cannot be compared.
    """
    import torch

    length = cp.length_of(given)
    if length is None:
        raise UsageError(
            "cp: the model got no tensor of shape [batch, length, ...], so its sequences cannot be compared"
        )
    group, part = world.group("cp"), world.position("cp")
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        before = stack.enter_context(_put_back(model, world))
        stack.enter_context(_exact(given, world.device))
        try:
            own, whole, drew = _both(model, world, _short(given, length, min(length, _POSITIONS)), before)
        except UsageError:
            raise
        except Exception:  # a model may need a fixed sequence length; other errors are raised again
            own, whole, drew = _both(model, world, given, before)
    pairs = list(_pairs(own, whole))
    off = max([_difference(*pair, part, group) for pair in pairs], default=2.0 if not pairs else 0.0)
    bits = {value.dtype.itemsize for pair in pairs for value in pair} | {p.dtype.itemsize for p in model.parameters()}
    limit = _TOLERANCE_16_BITS if min(bits) < 4 else _TOLERANCE
    wrong = agreement.largest([int(drew), int(not off <= limit), int(min(off, 1e3) * 1e4)], [group])
    name = type(model).__name__
    if wrong[0]:
        raise UsageError(
            f"cp: {name} draws random numbers outside dropout in its forward pass, and these would "
            "differ between the parts of a sequence; use shard or tp instead of cp"
        )
    if wrong[1]:
        raise UsageError(
            f"cp: {name} computes different values from the parts of a sequence than from the whole sequence: "
            f"its output "
            f"differs by {wrong[2] / 1e4:.2%}. A model that uses positions must get them from "
            "paceline.train.positions(length, device); a model that mixes positions outside "
            "scaled_dot_product_attention, or returns a mean over them, needs shard or tp instead of cp"
        )


def _both(model: Any, world: Any, given: Any, plain: AttributeSnapshot) -> tuple[Any, Any, bool]:
    """Return the output for this rank's part, the output for the whole sequence, and whether numbers were drawn.

    Args:
        model: The model.
        world: The ranks.
        given: Positional and keyword arguments of the forward pass.
        plain: The plain attributes and small buffers that the model gets before each of the two calls.
    """
    import torch

    plain.restore(model)
    before = random_states.of_torch(world.device)
    own = model(*given[0], **given[1])
    drew = any(not torch.equal(state, before[kind]) for kind, state in random_states.of_torch(world.device).items())
    plain.restore(model)
    length, group = cp.length_of(given), world.group("cp")
    args, kwargs = _mapped(lambda tensor: _joined(tensor, group) if cp.is_split(tensor, length) else tensor, given)
    with cp.unsplit():
        return own, model(*args, **kwargs), drew


def _short(given: Any, length: int, positions: int) -> Any:
    """Return the first positions of the inputs, of one sample if all inputs have a sample dimension."""
    sizes = [tensor.shape[0] for tensor in _tensors(given) if tensor.ndim]
    one = len(set(sizes)) == 1 and sizes[0] != length

    def cut(tensor: Any) -> Any:
        tensor = tensor.narrow(1, 0, positions) if cp.is_split(tensor, length) else tensor
        return tensor[:1] if one and tensor.ndim else tensor

    return _mapped(cut, given)


def _joined(tensor: Any, group: Any) -> Any:
    import torch

    parts = [torch.empty_like(tensor.contiguous()) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, tensor.contiguous(), group=group)
    return torch.cat(parts, 1)


def _pairs(own: Any, whole: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the floating-point tensors of two outputs in pairs."""
    if hasattr(own, "is_floating_point"):
        if own.is_floating_point():
            yield own, whole
    elif isinstance(own, Mapping):
        for key in own:
            yield from _pairs(own[key], whole[key])
    elif isinstance(own, tuple | list):
        for mine, other in zip(own, whole, strict=True):
            yield from _pairs(mine, other)
    elif hasattr(own, "__dict__"):
        yield from _pairs(vars(own), vars(whole))


def _difference(own: Any, whole: Any, part: int, group: Any) -> float:
    """Return the relative error, in norm, of this rank's output against the same part of the whole output."""
    import torch

    ranks = torch.distributed.get_world_size(group)
    if own.ndim == 0:  # a loss: a mean over equal parts
        own = own.clone()
        torch.distributed.all_reduce(own, group=group)
        own = own / ranks
    elif own.ndim > 1 and whole.ndim == own.ndim and whole.shape[1] == ranks * own.shape[1]:
        whole = whole.narrow(1, part * own.shape[1], own.shape[1])
    if own.shape != whole.shape:
        return 1.0
    return float((own.double() - whole.double()).norm() / whole.double().norm().clamp(min=1e-12))


@contextmanager
def _exact(given: Any, device: Any) -> Iterator[None]:
    """Compute without dropout inside the context, and in fp32 if the inputs are not in a 16-bit format."""
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    full = all(tensor.element_size() > 2 for tensor in _tensors(given) if tensor.is_floating_point())
    try:
        with (
            torch.autocast(device.type, enabled=not full and torch.is_autocast_enabled(device.type)),
            _without_dropout(),
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def _without_dropout() -> Any:
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode

    class NoDropout(TorchFunctionMode):
        """Turns off dropout."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = dict(kwargs or {})
            if "dropout" in getattr(function, "__name__", ""):
                return args[0] if args else options["input"]
            if function is scaled_dot_product_attention:
                options, args = (
                    {**options, **dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False))},
                    args[:3],
                )
                options["dropout_p"] = 0.0
            return function(*args, **options)

    return NoDropout()


@contextmanager
def _put_back(model: Any, world: Any) -> Iterator[AttributeSnapshot]:
    """Add noise to constant parameters. At the end, restore parameters, buffers, plain attributes and random states.

    Yields:
        The plain attributes and small buffers of the model.
    """
    plain = AttributeSnapshot.take(model)
    torch_states, host = random_states.of_torch(world.device), random_states.of_host()
    streams = {name: stream.state for name, stream in world.streams.items()}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    constants = list(_constants(model))
    for number, (values, _) in enumerate(constants):
        values.add_(_noise(values, number))
    try:
        yield plain
    finally:
        plain.restore(model)
        for values, constant in constants:
            values.fill_(constant)
        for buffer, before in buffers:
            buffer.copy_(before)
        random_states.put({**torch_states, **host}, world.device)
        for name, state in streams.items():
            world.streams[name].state = state


def _constants(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's part of each parameter whose values are all the same number, and that number."""
    for parameter in model.parameters():
        values = getattr(parameter, "_local_tensor", parameter).detach()
        if values.is_floating_point() and values.numel() and bool((values == values.flatten()[0]).all()):
            yield values, values.flatten()[0].item()


def _noise(values: Any, number: int) -> Any:
    import torch

    drawn = torch.randn(values.shape, generator=torch.Generator().manual_seed(number)) * _NOISE
    return drawn.to(values)


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in tuples, lists and dicts."""
    found: list[Any] = []
    _mapped(found.append, value)
    return iter(found)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return tuples, lists and dicts with a function applied to their tensors."""
    if hasattr(value, "is_floating_point"):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(change, each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return like(value, [_mapped(change, each) for each in value])
    return value
