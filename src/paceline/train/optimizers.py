"""Creates the optimizer and the learning-rate schedule of a distributed model, and checks that they fit it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.arrange import Arranged
from paceline.train.parallel import dtensor_patches, shard, split_views
from paceline.train.ranks import random_states
from paceline.train.ranks.world import World

_STEPS_WATCHED = 2  # steps in which an optimizer may not draw random numbers with pp
# Parts of torch's error messages for operations that DTensor does not support.
_NO_RULE = ("placement", "shard", "mixed torch.Tensor and DTensor")
_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.KEYWORD_ONLY, default=None)
_WAY_OUT = "Give a function: setup(model, lambda model: AdamW(model.parameters()))"


def check_maker(optimizer: Any) -> None:
    """Check that the user gave a function that creates the optimizer.

    Raises:
        UsageError: The value is an optimizer that already exists, a class, or not callable.
    """
    if isinstance(optimizer, type) or not callable(optimizer):
        what = optimizer.__name__ if isinstance(optimizer, type) else f"a ready {type(optimizer).__name__}"
        why = ": it contains parameters that are not distributed over ranks yet" if _is_ready(optimizer) else ""
        raise UsageError(f"setup() was given {what} for the optimizer{why}. {_WAY_OUT}")


def _is_ready(optimizer: Any) -> bool:
    return hasattr(optimizer, "param_groups")


def made(optimizer: Callable[[Any], Any], arranged: Arranged, world: World) -> Any:
    """Create the optimizer of a model.

    Args:
        optimizer: A function that creates the optimizer of a model.
        arranged: The model as this rank holds it.
        world: The ranks.

    Raises:
        UsageError: The function returned no optimizer, this rank has no trainable parameters, or the optimizer has
            parameters of another model, or other settings than that of the whole model.
    """
    if arranged.stages is None or arranged.whole is None:
        found = _made(optimizer, arranged.held)
    else:
        expected = _settings_of(optimizer, arranged.whole)
        found = _made(optimizer, arranged.held)
        _check_settings(found, arranged.held, expected, world)
    if arranged.stages is not None or _steps_apart(found):
        _refuse_draws(found, world)
    return found


def _made(optimizer: Callable[[Any], Any], model: Any) -> Any:
    try:
        with shard.original_classes(model):
            found = optimizer(model)
    except ValueError as error:
        if any(parameter.requires_grad for parameter in model.parameters()):
            raise
        raise UsageError(
            f"the pipeline stage of this rank has no parameter with requires_grad=True, so its optimizer cannot "
            f"be created: "
            f"{error}; pass all parameters to the optimizer (frozen ones do not change), or use shard instead of pp"
        ) from error
    if not _is_ready(found):
        raise UsageError(f"the function for the optimizer returned a {type(found).__name__}. {_WAY_OUT}")
    if inspect.signature(found.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(found).__name__} computes the loss several times in a step (closure), which the engine cannot do; "
            "use another optimizer, such as AdamW"
        )
    _check_owned(found, model)
    _step_apart(found)
    if any(is_split(p) for p in model.parameters()):
        dtensor_patches.patch()
        split_views.patch()
        split_views.find_owners(model)
        _explain_failures(found)
    return found


def _explain_failures(optimizer: Any) -> None:
    """Patch `optimizer.step()` to read numbers of whole tensors, and to name what torch cannot run on split parameters.

    Args:
        optimizer: Its method `step` is replaced. It raises a `UsageError` if torch cannot run one of its operations.
    """
    step = optimizer.step

    @wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        del self
        try:
            with dtensor_patches.during_optimizer_step():
                return step(*args, **kwargs)
        except RuntimeError as error:
            if not any(words in str(error) for words in _NO_RULE):
                raise
            raise UsageError(
                f"{type(optimizer).__name__} cannot update parameters that are split over ranks: "
                f"{str(error).splitlines()[0]}; use another optimizer, such as AdamW, or dp in place of shard and tp"
            ) from error

    optimizer.step = MethodType(stepped, optimizer)  # a method, as schedules of torch expect


def _refuse_draws(optimizer: Any, world: World) -> None:
    """Make the first steps of an optimizer raise a UsageError if they draw random numbers.

    With pp, a rank draws the numbers of its own layers only, and parameters that are updated separately draw in another
    order than in one process.
    """
    step, left = optimizer.step, [_STEPS_WATCHED]

    @wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        del self
        if not left[0]:
            return step(*args, **kwargs)
        left[0] -= 1
        before = random_states.of_torch(world.device)
        found = step(*args, **kwargs)
        after = random_states.of_torch(world.device)
        if any(not before[kind].equal(after[kind]) for kind in before):
            raise UsageError(
                f"layout {world.layout}: {type(optimizer).__name__} draws random numbers in step(). With pp and tp, a "
                "rank would draw other numbers than one process, because it has only some of the parameters; use dp "
                "or shard"
            )
        return found

    optimizer.step = MethodType(stepped, optimizer)  # a method, as schedules of torch expect


def _steps_apart(optimizer: Any) -> bool:
    """Return whether an optimizer has split and whole parameters, and could pass both in one list to torch."""
    kinds = {is_split(p) for group in optimizer.param_groups for p in group["params"]}
    if len(kinds) < 2 or _is_of_torch(type(optimizer)):
        return len(kinds) == 2
    try:
        return "foreach" in inspect.getsource(type(optimizer))
    except (OSError, TypeError):
        return True


def _is_of_torch(kind: type) -> bool:
    import torch

    parents = (each for each in kind.__mro__ if issubclass(each, torch.optim.Optimizer))
    return any(each is not torch.optim.Optimizer and each.__module__.startswith("torch.optim") for each in parents)


def _step_apart(optimizer: Any) -> None:
    """Make `optimizer.step()` update split parameters (DTensors) and whole parameters separately.

    With tp, an optimizer can have both, and foreach and fused kernels refuse lists that mix the two kinds.

    Args:
        optimizer: Changed in place. Its parameter groups differ only during `step()`.
    """
    if not _steps_apart(optimizer):
        return
    step = optimizer.step

    @wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> Any:
        del self
        with _groups_apart(optimizer):
            return step(*args, **kwargs)

    optimizer.step = MethodType(stepped, optimizer)  # a method, as schedules of torch expect


@contextmanager
def _groups_apart(optimizer: Any) -> Iterator[None]:
    """Split each parameter group into two during a step, and keep the options that the step changes."""
    own = optimizer.param_groups
    parts = [[part for split in (False, True) if (part := _part_of(group, split))["params"]] for group in own]
    optimizer.param_groups = [part for found in parts for part in found]
    try:
        yield
    finally:
        for group, found in zip(own, parts, strict=True):
            for part in found[:1]:
                group.update({name: value for name, value in part.items() if name != "params"})
        optimizer.param_groups = own


def _part_of(group: dict[str, Any], split: bool) -> dict[str, Any]:
    return {**group, "params": [p for p in group["params"] if is_split(p) == split]}


def is_split(parameter: Any) -> bool:
    """Return whether a parameter is a DTensor, of which this rank can hold only a part."""
    return hasattr(parameter, "placements")


def _check_owned(optimizer: Any, model: Any) -> None:
    """Check that an optimizer updates parameters of this model only."""
    own = {id(parameter) for parameter in model.parameters()}
    strange = sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])
    if strange:
        raise UsageError(
            f"{strange} parameters of the optimizer do not belong to the model that the function for the optimizer "
            "got. They are of the model from before it was split, or of another module, such as a loss, which must be "
            "a part of the model. Use the parameters of the model that the function gets: setup(model, lambda model: "
            "AdamW(model.parameters()))"
        )


def _settings_of(optimizer: Callable[[Any], Any], whole: Any) -> dict[str, dict[str, Any]] | None:
    """Return the settings that each parameter gets if the optimizer is created for the whole model.

    Args:
        optimizer: A function that creates the optimizer of a model.
        whole: A copy of the whole model.

    Returns:
        The settings by parameter name; None if the function fails.
    """
    with random_states.apart():
        try:
            found = optimizer(whole)
        except Exception:  # `_made` calls the function again, and raises its error
            return None
    return _settings(found, whole) if _is_ready(found) else None


def _check_settings(own: Any, model: Any, expected: Mapping[str, Mapping[str, Any]] | None, world: World) -> None:
    """Check that the optimizer of each pipeline stage has the settings of the whole model's optimizer; a collective.

    They differ if the user's function uses the number or the position of layers, because a stage has only some of them.

    Args:
        own: The optimizer of this rank.
        model: The layers of this rank, with the names of the whole model.
        expected: As `_settings_of` returns them.
        world: The ranks.

    Raises:
        UsageError: A parameter of any rank has other settings.
    """
    import torch

    every: list[Any] = [None] * world.layout.ranks
    own_difference = None if expected is None else _difference(_settings(own, model), expected, model)
    torch.distributed.all_gather_object(every, own_difference)
    what = next((each for each in every if each is not None), None)
    if what is not None:
        raise UsageError(
            f"layout {world.layout}: the optimizer {what}. With pp, the function for the optimizer gets only the "
            "layers of a rank: choose groups and settings by the names of parameters (named_parameters()), and compute "
            "what depends on all layers, such as their number, before setup()"
        )


def _difference(
    found: Mapping[str, Mapping[str, Any]], expected: Mapping[str, Mapping[str, Any]], model: Any
) -> str | None:
    """Return the first difference between the settings of this rank and the expected ones, or None."""
    for name, parameter in model.named_parameters():
        own, whole = found.get(name), expected.get(name)
        if not parameter.requires_grad or own == whole:
            continue
        if own is None or whole is None:
            return f"{'gets' if whole is None else 'does not get'} {name}, unlike in one process"
        key = next(key for key in {**own, **whole} if own.get(key) != whole.get(key))
        return f"gives {name} {key}={own.get(key)}, and in one process {whole.get(key)}"
    return None


def _settings(optimizer: Any, model: Any) -> dict[str, dict[str, Any]]:
    """Return the settings of the group of each parameter, by parameter name. Tensors are converted to numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        settings = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in settings.items()}
        found.update({names[id(each)]: settings for each in group["params"] if id(each) in names})
    return found


def schedule_of(schedule: Callable[[Any], Any] | None, optimizer: Any) -> Any:
    """Create the learning-rate schedule of an optimizer; return None if none was asked for.

    Raises:
        UsageError: The schedule depends on something other than the number of applied steps.
    """
    import torch

    found = None if schedule is None else schedule(optimizer)
    if isinstance(found, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "ReduceLROnPlateau depends on a loss instead of steps: leave out schedule=, create it from the "
            "optimizer that "
            "setup() returns, and call its step(loss) on all ranks after an evaluation"
        )
    return found
