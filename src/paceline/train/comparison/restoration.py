"""Contexts that restore models, losses and random numbers after a comparison.

Constant trainable parameters, such as a bias of zeros or a norm's weight of ones, get noise during the comparison;
otherwise errors in them, or in values that they multiply, would not show. The noise of a parameter depends on the name
of the parameter and on the part of it that this rank holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.comparison import draws
from paceline.train.ranks import random_states
from paceline.train.ranks.world import World
from paceline.train.unmodified.snapshot import Snapshot, copy_value

_NOISE = 0.1


@contextmanager
def restore_models(models: Sequence[Any], world: World) -> Iterator[None]:
    """Restore the state of models and the random numbers when the context ends, and set gradients to None."""
    drawn = random_states.of_torch(world.device), random_states.of_host()
    streams = {name: stream.state for name, stream in world.streams.items()}
    parameters = [parameter for model in models for parameter in model.parameters()]
    try:
        with restore_state(models, ignored=parameters):
            yield
    finally:
        random_states.put({**drawn[0], **drawn[1]}, world.device)
        for name, state in streams.items():
            world.streams[name].state = state
        for parameter in parameters:
            parameter.grad = None


@contextmanager
def restore_state(objects: Sequence[Any], ignored: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Restore all values that objects refer to, and the gradients of tensors among them, when the context ends.

    Args:
        objects: Models or functions. A function refers to the variables that it uses.
        ignored: Tensors and objects that are not restored.

    Yields:
        A dict. When the context ends, it gets copies of the changed values, by name.
    """
    import torch

    snapshot, changed = Snapshot(torch, objects[0], objects[1:], ignored), dict[str, Any]()
    leaves = [tensor for tensor in snapshot.tensors() if tensor.is_leaf and tensor.requires_grad]
    gradients = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    try:
        yield changed
    finally:
        changed.update({name: copy_value(torch, place.get()) for name, place in snapshot.changed().items()})
        snapshot.restore()
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient


@contextmanager
def add_noise(model: Any) -> Iterator[None]:
    """Add noise to parameters whose elements are all equal, and restore their value when the context ends."""
    import torch

    constants = [(name, _local(value), _local(value).flatten()[:1].clone()) for name, value in _constants(model)]
    parts = {name: _part_of(value) for name, value in model.named_parameters()}
    with torch.no_grad():
        for name, values, _ in constants:
            seed = random_states.mixed("noise", name, parts[name])
            noise = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
            values.add_((noise * _NOISE).to(values) * torch.where(values == 0, 1.0, values))
    try:
        yield
    finally:
        with torch.no_grad():
            for _, values, constant in constants:
                values.copy_(constant.expand(values.numel()).view(values.shape))


def _constants(model: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in model.named_parameters():
        values = _local(parameter)
        if (
            parameter.requires_grad
            and values.is_floating_point()
            and values.numel()
            and bool((values == values.flatten()[0]).all())
        ):
            yield name, parameter


def _local(parameter: Any) -> Any:
    return getattr(parameter, "_local_tensor", parameter).detach()


def _part_of(parameter: Any) -> tuple[int, ...]:
    """Return the indices of this rank on the mesh axes over which a parameter is split."""
    places = getattr(parameter, "placements", ())
    mesh: Any = getattr(parameter, "device_mesh", None)
    return tuple(mesh.get_local_rank(axis) for axis, each in enumerate(places) if not each.is_replicate())


@contextmanager
def undo_writes(model: Any, copy: Any) -> Iterator[None]:
    """Undo what the forward pass of a model writes to its parameters inside the context, such as a decay.

    Args:
        model: The model.
        copy: A model whose parameters have the same names and values.

    Raises:
        UsageError: The forward pass writes to a parameter that the copy does not have as a whole.
    """
    import torch

    named = dict(model.named_parameters())
    before = {name: _digest(parameter) for name, parameter in named.items()}
    yield
    values = dict(copy.named_parameters())
    for name, parameter in named.items():
        if _digest(parameter) == before[name]:
            continue
        if hasattr(parameter, "placements") or name not in values or hasattr(values[name], "placements"):
            raise UsageError(
                f"the forward pass changes the parameter {name}, and only the layout dp can compare such a model with "
                "one process. Compute the changed weight in forward() without assigning it, or change "
                f"{name} after engine.step() instead"
            )
        with torch.no_grad():
            parameter.copy_(values[name])


def _digest(parameter: Any) -> tuple[float, float]:
    import torch

    value = _local(parameter)
    value = torch.view_as_real(value) if value.is_complex() else value
    return float(value.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(value.float()))


@contextmanager
def begin_alike(model: Any, buffers: Sequence[tuple[Any, Any]], world: World) -> Iterator[None]:
    """Start a pass of a model from given buffers and without gradients, in full fp32 precision.

    At the end, the random states are restored.

    Args:
        model: The model.
        buffers: Pairs of a buffer, of this model or another one, and the value to begin with.
        world: The ranks.
    """
    import torch

    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    drawn = {**random_states.of_torch(world.device), **random_states.of_host()}
    with torch.no_grad():
        for buffer, before in buffers:
            if any(buffer is own for own in model.buffers()):
                buffer.copy_(before)
    for parameter in model.parameters():
        parameter.grad = None
    fused = world.device.type != "cpu"
    try:
        with torch.enable_grad(), draws.without_attention_dropout() if fused else nullcontext():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        random_states.put(drawn, world.device)


class StateCheck:
    """Values that passes change besides parameters and buffers: attributes of models, and the state of the loss.

    Examples are a counter, a running mean in an attribute, or a queue of earlier outputs in a loss.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        """Store the models.

        Args:
            models: The split model, as it is called and as this rank holds it, and the whole model.
        """
        self._models = models
        self.functions: tuple[Any, ...] = ()  # the loss and its weight, with `train_batch`

    def iterators(self, model: Any = None) -> list[str]:
        """Return the names of iterators that a model and the loss use. Their positions cannot be restored.

        Args:
            model: One of the models; None for the loss only.
        """
        import torch

        roots = self.functions if model is None else (model, *self.functions)
        return Snapshot(torch, roots[0], roots[1:], self._ignored(model)).iterators

    @contextmanager
    def restored(self, model: Any) -> Iterator[dict[str, Any]]:
        """Restore the changed values of a model and of the loss when the context ends.

        Yields:
            A dict. When the context ends, it gets copies of the changed values by name; names of attributes of the
            model begin with a dot.
        """
        values: dict[str, Any] = {}
        with restore_state((model, *self.functions), self._ignored(model)) as changed:
            yield values
        values.update({name.removeprefix(type(model).__name__): value for name, value in changed.items()})

    def run_twice(self, model: Any, names: Sequence[str], run: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the results of two passes. In the second one, some values are those after the first one.

        Args:
            model: The model that runs.
            names: The names of these values, as `restored` yields them. All other values are restored.
            run: Runs a pass, and returns its results.
        """
        import torch

        root, ignored = type(model).__name__, self._ignored(model)
        with restore_state((model, *self.functions), ignored):
            snapshot = Snapshot(torch, model, self.functions, ignored)
            first = run()
            snapshot.restore_values(each for each in snapshot.changed() if each.removeprefix(root) not in names)
            return first, run()

    def _ignored(self, model: Any) -> list[Any]:
        """Return all parameters and buffers, and the modules of the other models."""
        own = set() if model is None else set(model.modules())
        return [
            *(part for each in self._models for part in each.modules() if part not in own),
            *(tensor for each in self._models for tensor in (*each.parameters(), *each.buffers())),
        ]
