"""How is a run saved so that any other layout can go on? By names of the whole model, in torch's DCP format.

Each rank writes the parts that it holds; a reader of another layout asks for its own parts. Optimizer state goes by the
name of its parameter, so that stages and shards come apart and together. Progress (steps, loss scale, schedule) is one
JSON file that rank 0 writes last, under its name only when it is whole.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.train.replicas import Replicas

_PROGRESS = "paceline.json"
_SCHEMA = "paceline.checkpoint/1"


def state(model: Any, optimizer: Any, replicas: Replicas | None, *, stepped: bool) -> dict[str, Any]:
    """Return what is saved, and what is read into, by the names of the whole model.

    Args:
        model: The module that holds this rank's parameters.
        optimizer: Of that module.
        replicas: Of a mode in which they do not step together; None without.
        stepped: Whether the optimizer has state. Where it has none, torch would make it by a step.
    """
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict

    if stepped:
        of_model, of_optimizer = get_state_dict(model, optimizer, options=_options())
    else:
        of_model = get_model_state_dict(model, options=_options())
        of_optimizer = {key: group[name] for key, group, name in _settings(model, optimizer)}
    if replicas is None:
        return {"model": of_model, "optimizer": of_optimizer}
    return {"model": of_model, f"optimizer of replica {_rank()}": of_optimizer, "outer": replicas.state()}


def _settings(model: Any, optimizer: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield an optimizer's settings: their names in a checkpoint, as torch has them, their groups, and their names."""
    of_parameter = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name in sorted(set(group) - {"params"}):
                yield f"param_groups.{of_parameter[id(parameter)]}.{name}", group, name


def _options() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=True)


def save(folder: Path, tensors: dict[str, Any], progress: dict[str, Any]) -> None:
    """Write a checkpoint; a collective of all ranks.

    Args:
        folder: Where; its earlier checkpoint is replaced.
        tensors: As `state` returns them.
        progress: What goes into the JSON file.
    """
    from torch.distributed import checkpoint

    first = _rank() == 0
    if first:
        (folder / _PROGRESS).unlink(missing_ok=True)
    with _quiet():
        checkpoint.save(tensors, checkpoint_id=folder)
    if first:
        part = folder / f"{_PROGRESS}.part"
        part.write_text(json.dumps({"schema": _SCHEMA, **progress}, default=_number), encoding="utf-8")
        part.replace(folder / _PROGRESS)
    _meet()


def _number(value: Any) -> Any:
    """Return what JSON takes of a number of torch or NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"the schedule's state has a {type(value).__name__}, which JSON does not take")


def shaped(own: Any, saved: Any) -> Any:
    """Return what JSON kept, with the kinds of dict, key and sequence that one's own state has.

    JSON has text for all keys: steps at which `MultiStepLR` lowers the rate would never come.
    """
    if isinstance(own, dict) and isinstance(saved, dict):
        kinds = {type(key) for key in own}
        kind = kinds.pop() if len(kinds) == 1 else str
        found = copy(own)
        found.clear()
        found.update({kind(key): shaped(own.get(kind(key)), value) for key, value in saved.items()})
        return found
    if isinstance(own, tuple | list) and isinstance(saved, list) and len(own) == len(saved):
        return type(own)(shaped(mine, value) for mine, value in zip(own, saved, strict=True))
    return saved


def load(folder: Path, tensors: dict[str, Any], *, same_ranks: bool) -> None:
    """Read the tensors of a checkpoint; a collective of all ranks.

    Args:
        folder: Of a checkpoint, of any layout.
        tensors: As `state` returns them, and random numbers; they are read into, but for random numbers of ranks that
            were others.
        same_ranks: Whether ranks are what they were, and go on with their random numbers.

    Raises:
        UsageError: It is of another model or optimizer.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with _quiet():
            checkpoint.load({k: v for k, v in tensors.items() if same_ranks or k != "random"}, checkpoint_id=folder)
    except CheckpointException as error:
        causes = "; ".join(str(cause) for cause in list(error.failures.values())[:1]) or str(error)
        raise UsageError(f"checkpoint {folder} is not of this model and optimizer: {causes}") from error


def apply(tensors: dict[str, Any], model: Any, optimizer: Any, replicas: Replicas | None, *, stepped: bool) -> None:
    """Give what was read to a model, its optimizer and its replicas; one that had not stepped loses its state."""
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_state_dict

    (of_optimizer,) = (value for name, value in tensors.items() if name.startswith("optimizer"))
    if stepped:
        set_state_dict(
            model, optimizer, model_state_dict=tensors["model"], optim_state_dict=of_optimizer, options=_options()
        )
    else:
        set_model_state_dict(model, tensors["model"], options=_options())
        for key, group, name in _settings(model, optimizer):
            group[name] = of_optimizer[key]
        optimizer.state.clear()
    if replicas is not None:
        replicas.load(tensors["outer"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's warning that one process is alone: it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def read_progress(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Read the JSON file of a checkpoint.

    Args:
        folder: Of a checkpoint, of any layout.
        wanted: Names that the file must have.

    Raises:
        UsageError: There is no whole checkpoint, or it is of another run.
    """
    try:
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"no whole checkpoint in {folder}: {error}; give a folder that engine.save() wrote") from error
    missing = sorted(set(wanted) - set(progress))
    if progress.get("schema") != _SCHEMA or missing:
        raise UsageError(
            f"checkpoint {folder} ({progress.get('schema')}) has no {', '.join(missing) or _SCHEMA}: it was saved with "
            "another precision, without a schedule or with replicas that step together; load it with its own settings"
        )
    if progress.get("replicas") != wanted.get("replicas"):
        raise UsageError(
            f"checkpoint {folder} is of {progress['replicas']} replicas that train alone, each with an optimizer of "
            f"its own; load it with layout dp={progress['replicas']} and [local] or [asynchronous]"
        )
    return dict(progress)


def _rank() -> int:
    import torch

    return int(torch.distributed.get_rank()) if torch.distributed.is_initialized() else 0


def _meet() -> None:
    """Wait for all ranks."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.barrier()
