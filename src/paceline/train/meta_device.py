"""Weights of a model that was created on the meta device, for models that fit neither on one device nor in host memory.

The model is split while it has no values. Then one part after another (a repeated block, or a module outside of the
blocks) is made whole in host memory on each rank, initialised there with the random numbers of rank 0, and each rank
copies its share to its device. Of a checkpoint each rank reads its share of one tensor after another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.core.errors import UsageError
from paceline.train.activations import blocks_of
from paceline.train.checkpoints import folder
from paceline.train.checkpoints.tensor_files import open_tensors
from paceline.train.parallel.whole_tensors import part_of
from paceline.train.ranks import random_states
from paceline.train.ranks.world import World
from paceline.train.recipe import Recipe

Init = Literal["reset_parameters"] | Callable[[Any], Any]
Weights = str | Path | Mapping[str, Any]
_RESET = "reset_parameters"
_AXES = {"dp", "shard", "tp", "pp"}
_WAY_OUT = (
    f'pass setup(..., init="{_RESET}") to call {_RESET}() of each module, init=FUNCTION to initialise each module with '
    "a function, or weights=PATH to read a checkpoint or a file of tensors; or create the model on the CPU"
)


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """What gives values to a model on the meta device."""

    whole: Any  # a copy of the model from before it was split, without values
    init: Init | None
    weights: Weights | None


def source_of(model: Any, recipe: Recipe, init: Init | None, weights: Weights | None) -> InitialWeights | None:
    """Return where the values of a model come from, before it is split; None if it has values.

    Args:
        model: The whole model.
        recipe: Of the run.
        init: As `Engine.setup` takes it.
        weights: As `Engine.setup` takes it.

    Raises:
        UsageError: The model has some values only, the layout needs values, or no source was given.
    """
    tensors = _tensors(model)
    missing = [name for name, value in tensors.items() if value.is_meta]
    name = type(model).__name__
    if not missing:
        if init is not None or weights is not None:
            raise UsageError(
                f"{name} has values already, and init= and weights= are for a model on the meta device; create the "
                'model in a block `with torch.device("meta"):`, or leave them out'
            )
        return None
    what = f"{name} has parameters without values (device meta), such as {missing[0]}"
    _check_layout(what, recipe)
    for parameter, value in model.named_parameters():
        if not value.is_meta:
            raise UsageError(f"{what}, but {parameter} has values; create all parameters on the meta device")
    _check_not_shared(name, model)
    if init is None and weights is None:
        raise UsageError(f"{what}: {_WAY_OUT}")
    if init is not None and init != _RESET and not callable(init):
        raise UsageError(f'setup(): init = {init!r} is not allowed; it takes "{_RESET}" or a function of a module')
    return InitialWeights(whole=copy.deepcopy(model), init=init, weights=weights)


def _check_layout(what: str, recipe: Recipe) -> None:
    """See that a layout splits a model before it has values."""
    used = set(recipe.layout.in_use)
    if "shard" not in used or not used <= _AXES:
        raise UsageError(
            f"{what}, and layout {recipe.layout} needs values; create the model on the CPU, or use a layout with shard "
            "and without cp"
        )
    if recipe.layout.pp > 1 and recipe.pipeline.balance == "measured":
        raise UsageError(f"{what}, and pipeline.balance = 'measured' needs values; use balance = 'counted'")


def _check_not_shared(name: str, model: Any) -> None:
    """See that no parameter has two names: each part of the model is made by itself."""
    owners: dict[int, str] = {}
    for parameter, value in model.named_parameters(remove_duplicate=False):
        if owners.setdefault(id(value), parameter) != parameter:
            raise UsageError(
                f"{name}: {owners[id(value)]} and {parameter} share a parameter, which is not supported on the meta "
                "device; create the model on the CPU, or give each its own parameter"
            )


def fill(source: InitialWeights, held: Any, world: World) -> None:
    """Give values to a model that was split without; a collective of all ranks.

    Args:
        source: From `source_of`.
        held: The module with the parameters of this rank, under the names of the whole model, in memory of its device.
        world: The ranks.

    Raises:
        UsageError: A tensor gets no value, or one of another shape.
    """
    import torch

    targets = _tensors(held)
    with torch.no_grad():
        filled = {name for name, value in _tensors(source.whole).items() if not value.is_meta}
        for name in filled & set(targets):
            _copy_share(name, targets[name], source.whole.get_buffer(name))
        if source.init is not None:
            _adopt_random_numbers(world)
            for modules in _parts(source.whole, set(blocks_of(source.whole))):
                for name, value in _initialised(modules, source.init):
                    filled.add(name)
                    if name in targets:
                        _copy_share(name, targets[name], value)
        if source.weights is not None:
            filled |= _read(source.weights, held, targets)
    lacking = [name for name in targets if name not in filled]
    if lacking:
        raise UsageError(
            f"{type(source.whole).__name__}: the weights that setup() was given have no {lacking[0]}"
            f"{f' and {len(lacking) - 1} more' if lacking[1:] else ''}; pass init= too, which gives values to all "
            "tensors before the weights are read"
        )


def _tensors(module: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _adopt_random_numbers(world: World) -> None:
    """Draw on as rank 0 does: all ranks make the same values."""
    import torch

    if world.mesh is None:
        return
    states = [{**random_states.of_torch(world.device), **random_states.of_host()} if world.rank == 0 else None]
    torch.distributed.broadcast_object_list(states, 0)
    random_states.put(states[0] or {}, world.device)


def _initialised(modules: list[tuple[str, Any]], init: Init) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a part of a model by name, after it was initialised.

    Args:
        modules: The modules of the part on the meta device, with their names; they are there again at the end.
        init: What initialises a module.
    """
    versions = {id(value): value._version for _, module in modules for value in _materialised(module)}
    with _no_meta_tensors():
        for name, module in modules:
            _initialise(name, module, init)
    for name, module in modules:
        for own, value in _own_tensors(module):
            full_name = f"{name}.{own}" if name else own
            _check_set(full_name, value, versions)
            yield full_name, value.detach()
        module._apply(lambda value: value.to("meta"), recurse=False)


def _parts(module: Any, blocks: set[Any], prefix: str = "") -> Iterator[list[tuple[str, Any]]]:
    """Yield the modules that are made together, with their names, in the order of `Module.apply`."""
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if child not in blocks and not blocks.isdisjoint(child.modules()):
            yield from _parts(child, blocks, path)
        else:
            yield list(_children_first(child, path))
    yield [(prefix, module)]


def _children_first(module: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        yield from _children_first(child, f"{path}.{name}")
    yield path, module


def _own_tensors(module: Any) -> list[tuple[str, Any]]:
    """Return the parameters and buffers that belong to a module itself, by name."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _materialised(module: Any) -> list[Any]:
    """Give those tensors of a module itself that are on the meta device values that `_check_set` knows; return them."""
    import torch

    missing = {name for name, value in _own_tensors(module) if value.is_meta}

    def made(value: Any) -> Any:
        if not value.is_meta:
            return value
        floating = value.is_floating_point() or value.is_complex()
        unset = float("nan") if floating else value.dtype is not torch.bool and torch.iinfo(value.dtype).max
        return torch.full(value.shape, unset, dtype=value.dtype, device="cpu")

    module._apply(made, recurse=False)
    return [value for name, value in _own_tensors(module) if name in missing]


def _initialise(name: str, module: Any, init: Init) -> None:
    if callable(init):
        init(module)
        return
    reset = getattr(module, _RESET, None) or getattr(module, f"_{_RESET}", None)
    if reset is not None:
        reset()
    elif _own_tensors(module):
        raise UsageError(
            f'init="{_RESET}": {name or "the model"} ({type(module).__name__}) has no {_RESET}(); give it one that '
            "sets its own parameters and buffers, or pass init=FUNCTION"
        )


def _no_meta_tensors() -> Any:
    """Return a context in which an operator on a tensor without values is an error; torch would ignore it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(isinstance(value, torch.Tensor) and value.is_meta for value in args):
                raise UsageError(
                    "init: a module sets values of a part of the model that is made separately; each module may only "
                    "set values of itself and of modules inside it, and a module that contains repeated blocks only "
                    "its own"
                )
            return func(*args, **(kwargs or {}))

    return Refuse()


def _check_set(name: str, value: Any, versions: Mapping[int, int]) -> None:
    """See that a tensor was given values: it was replaced, or its first values are gone."""
    import torch

    if versions.get(id(value)) != value._version:
        return
    if value.is_floating_point() or value.is_complex():
        unset = bool(value.isnan().any())
    else:
        unset = value.dtype is torch.bool or bool((value == torch.iinfo(value.dtype).max).any())
    if unset and value.numel():
        raise UsageError(
            f"init gave no values to {name}; set them in the function, or in {_RESET}() of the module that has it"
        )


def _copy_share(name: str, target: Any, value: Any) -> None:
    """Copy this rank's share of a whole tensor."""
    if tuple(value.shape) != tuple(target.shape):
        raise UsageError(f"weights: {name} has the shape {tuple(value.shape)}, and the model's {tuple(target.shape)}")
    if not hasattr(target, "placements"):
        target.copy_(value)
        return
    target.to_local().copy_(part_of(target, value))


def _read(weights: Weights, held: Any, targets: Mapping[str, Any]) -> set[str]:
    """Read the tensors of a model from a checkpoint, a file or a state dict; return the names that it has."""
    if not isinstance(weights, Mapping):
        path = Path(weights)
        if folder.is_checkpoint(path):
            return folder.load_model(path, held)
        weights = open_tensors(path)
    for name in set(weights) & set(targets):
        _copy_share(name, targets[name], weights[name])
    return set(weights)
