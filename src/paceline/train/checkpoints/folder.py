"""Checkpoints that any other layout can load: tensors have the names of the original model, in torch's DCP format.

Each rank writes the parts that it holds, and a reader with another layout asks for the parts that it needs.
Optimizer state is stored by parameter name. Progress (steps, loss scale, schedule) is one JSON file, which rank
0 writes last. A checkpoint is written to a folder beside the target, which replaces the target when it is
complete.
"""

from __future__ import annotations

import json
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.train.parallel.replicas import Replicas

_PROGRESS = "paceline.json"
_EXTRA = "extra.pt"
_SCHEMA = "paceline.checkpoint/1"
_OPTIONAL = frozenset(["host_random"])  # names that files of earlier versions lack


def state(model: Any, optimizer: Any, replicas: Replicas | None, *, stepped: bool) -> dict[str, Any]:
    """Return the tensors to save, or to load into, by the names of the original model.

    Args:
        model: The module that holds this rank's parameters.
        optimizer: The optimizer of that module.
        replicas: State of a mode in which replicas do not step together, such as `[asynchronous]`; None otherwise.
        stepped: Whether the optimizer has state. If it has none, only its settings are returned, because torch
            would take a step to create state.
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
    """Yield each setting of an optimizer: its key in a checkpoint, its parameter group, and its name in that group."""
    of_parameter = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for name in sorted(set(group) - {"params"}):
                yield f"param_groups.{of_parameter[id(parameter)]}.{name}", group, name


@contextmanager
def without_steps(optimizer: Any) -> Iterator[None]:
    """Make `optimizer.step()` do nothing inside the context.

    If an optimizer has no state, torch takes a step with a learning rate of 0 to create it, when a state is saved and
    when it is loaded. That step can change the parameters, such as that of an optimizer that adds noise.
    """
    own = vars(optimizer).get("step")
    optimizer.step = lambda closure=None: None
    try:
        yield
    finally:
        if own is None:
            del optimizer.step
        else:
            optimizer.step = own


def _options() -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    return StateDictOptions(flatten_optimizer_state_dict=True)


@dataclass(frozen=True, kw_only=True)
class CheckpointContents:
    """What a checkpoint consists of on one rank."""

    tensors: dict[str, Any]  # as `state` returns them
    progress: str  # the JSON file
    extra: bytes | None  # the file with what the program added; None without


def contents_of(
    tensors: dict[str, Any], progress: dict[str, Any], extra: Mapping[str, Any] | None
) -> CheckpointContents:
    """Return what is written to a checkpoint; the tensors are not copied.

    Args:
        tensors: As `state` returns them.
        progress: What goes into the JSON file.
        extra: Of the program's own: what `torch.load(weights_only=True)` reads; rank 0's is written.
    """
    import torch

    text = json.dumps({"schema": _SCHEMA, **progress}, default=_number)
    file = BytesIO()
    if extra is not None and _rank() == 0:
        torch.save(dict(extra), file)
    return CheckpointContents(tensors=tensors, progress=text, extra=file.getvalue() or None)


def save(folder: Path, contents: CheckpointContents, group: Any = None, *, staged: bool = False) -> None:
    """Write a checkpoint; a collective of all ranks.

    The checkpoint is written beside the folder and then replaces it, so a complete checkpoint exists at all
    times.

    Args:
        folder: Where; its earlier checkpoint is replaced, other files in it stay.
        contents: Of this rank.
        group: Process group of all ranks; None: the default one.
        staged: Whether all tensors are in host memory. The GPU is then not used, so that a thread can save.

    Raises:
        EnvironmentFault: It cannot be written, on all ranks.
    """
    from torch.distributed import checkpoint

    part = beside(folder, "part")
    _on_rank_0(folder, group, partial(_clear, folder, part))
    try:
        with _quiet():
            checkpoint.save(contents.tensors, process_group=group, **_with_metadata_on_rank_0(part, staged=staged))
    except checkpoint.CheckpointException as error:  # torch gives it to all ranks
        raise _not_written(folder, _cause(error)) from error
    _on_rank_0(folder, group, partial(_complete, contents, part, folder))


def _with_metadata_on_rank_0(part: Path, *, staged: bool) -> dict[str, Any]:
    """Return how torch saves to a folder and leaves the names and shapes of all tensors on rank 0.

    torch sends the metadata of the whole checkpoint to all ranks at the end, where nobody reads it. It grows with the
    number of tensors and with the number of ranks.

    Where there is a GPU, torch also waits for its current stream after every 10 MB. In a thread that is the stream of
    training on GPU 0, of which other ranks would begin a context. Staged tensors need none of this.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.metadata import Metadata

    class OnRank0(Metadata):
        def __reduce__(self) -> Any:
            return Metadata, ({},)

    class Planner(checkpoint.DefaultSavePlanner):
        def create_global_plan(self, all_plans: Any) -> Any:
            plans, metadata = super().create_global_plan(all_plans)
            return plans, OnRank0(**vars(metadata))

    class Writer(checkpoint.FileSystemWriter):
        def finish(self, metadata: Any, results: Any) -> None:
            super().finish(Metadata(**vars(metadata)), results)

    writer = Writer(part, per_thread_copy_ahead=0) if staged else Writer(part)
    return {"storage_writer": writer, "planner": Planner()}


def _on_rank_0(folder: Path, group: Any, work: Callable[[], None]) -> None:
    """Do a part of a save on rank 0 while the others wait; raise its error on all ranks."""
    import torch

    failed: list[OSError | None] = [None]
    if _rank() == 0:
        try:
            work()
        except OSError as error:
            failed = [error]
    if torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(failed, 0, group)
    if failed[0] is not None:
        raise _not_written(folder, failed[0])


def _not_written(folder: Path, cause: BaseException) -> EnvironmentFault:
    return EnvironmentFault(
        f"checkpoint {folder} could not be written ({type(cause).__name__}: {cause}); an earlier checkpoint there is "
        "kept. Free disk space, or save to another folder"
    )


def _clear(folder: Path, part: Path) -> None:
    """Finish or remove what an interrupted save left."""
    recover(folder)
    shutil.rmtree(part, ignore_errors=True)


def _complete(contents: CheckpointContents, part: Path, folder: Path) -> None:
    """Write rank 0's files to a checkpoint, and give it its place."""
    if contents.extra is not None:
        (part / _EXTRA).write_bytes(contents.extra)
    (part / _PROGRESS).write_text(contents.progress, encoding="utf-8")
    put_in_place(part, folder)


def _cause(error: Any) -> BaseException:
    """Return the exception of one rank in torch's error of several ranks."""
    cause: BaseException = next((wrapped[0] for wrapped in error.failures.values()), error)  # exception and traceback
    return cause


def beside(folder: Path, what: str) -> Path:
    """Return the hidden folder next to a checkpoint, for the new (``part``) or the replaced (``old``) checkpoint."""
    return folder.absolute().parent / f".{folder.absolute().name}.{what}"


def put_in_place(part: Path, folder: Path) -> None:
    """Replace a checkpoint folder by a complete new one.

    Args:
        part: The folder with the new checkpoint.
        folder: The checkpoint folder. Files in it that are not part of a checkpoint are kept.
    """
    folder, old = folder.absolute(), beside(folder, "old")
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    if old.exists():
        for path in old.iterdir():
            if not _is_ours(path):
                path.rename(folder / path.name)
        shutil.rmtree(old)


def recover(folder: Path) -> None:
    """Complete a replacement by `put_in_place` that was interrupted when its run was killed."""
    folder, old, part = folder.absolute(), beside(folder, "old"), beside(folder, "part")
    if old.exists() and not folder.exists():
        (part if (part / _PROGRESS).exists() else old).rename(folder)
    if old.exists():
        for path in old.iterdir():
            if not _is_ours(path) and not (folder / path.name).exists():
                path.rename(folder / path.name)
        shutil.rmtree(old)


def _is_ours(path: Path) -> bool:
    return path.name in (_PROGRESS, _EXTRA, ".metadata") or path.suffix == ".distcp"


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder has a whole checkpoint; a collective of all ranks."""
    if _rank() == 0:
        recover(folder)
    _meet()
    return (folder / _PROGRESS).exists()


def load_model(folder: Path, model: Any) -> set[str]:
    """Read the tensors that a model and a checkpoint have in common; a collective of all ranks.

    Args:
        folder: Of a checkpoint, of any layout.
        model: The module that holds this rank's parameters.

    Returns:
        The names of all tensors of the checkpoint's model.

    Raises:
        UsageError: A tensor has another shape.
    """
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    saved = {key.removeprefix("model.") for key in keys if key.startswith("model.")}
    own = {name: value for name, value in get_model_state_dict(model, options=_options()).items() if name in saved}
    load(folder, {"model": own}, same_ranks=False)
    set_model_state_dict(model, own, options=StateDictOptions(strict=False))
    return saved


def read_extra(folder: Path) -> dict[str, Any]:
    """Return the extra values that the program saved with a checkpoint; empty if it saved none."""
    import torch

    path = folder / _EXTRA
    return dict(torch.load(path, map_location="cpu", weights_only=True)) if path.exists() else {}


def _number(value: Any) -> Any:
    """Return a torch or NumPy number as a Python number, for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"the state of the learning-rate schedule contains a {type(value).__name__}, which JSON cannot store"
    )


def shaped(own: Any, saved: Any) -> Any:
    """Return a value from JSON converted to the container and key types that the program's own state has.

    JSON turns all keys into text, so without this `MultiStepLR` would never find the steps at which it lowers
    the rate.

    Args:
        own: The current state of the same object, whose types are used.
        saved: The value that JSON stored.
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


def schedule_of_groups(own: Any, saved: Any, groups: list[dict[str, Any]]) -> Any:
    """Return the saved state of a learning-rate schedule, changed to fit the parameter groups of this rank.

    The saved state is that of rank 0. With pp, ranks have different parameter groups, so lists with one value for each
    group cannot be loaded. Learning rates are taken from the groups; other such lists keep their current values.

    Args:
        own: The current state of the schedule on this rank.
        saved: The state in the checkpoint.
        groups: The parameter groups of the optimizer, after their settings were loaded.
    """
    if isinstance(own, dict) and isinstance(saved, dict):
        found = shaped(own, saved)
        for key in set(found) & set(own):
            found[key] = _entry_of_groups(key, own[key], found[key], groups)  # Counter.update would add the counts
        return found
    if isinstance(own, list) and isinstance(saved, list) and len(own) == len(saved):
        return [schedule_of_groups(mine, value, groups) for mine, value in zip(own, saved, strict=True)]
    return saved


def _entry_of_groups(key: Any, own: Any, saved: Any, groups: list[dict[str, Any]]) -> Any:
    """Return the value of one key in the state of a schedule; see `schedule_of_groups`."""
    setting = {"base_lrs": "initial_lr", "_last_lr": "lr"}.get(key, "")
    if setting and all(setting in group for group in groups):
        return [float(group[setting]) for group in groups]
    if isinstance(own, list) and len(own) == len(groups) and all(isinstance(value, float) for value in own):
        return own
    return schedule_of_groups(own, saved, groups)


def load(folder: Path, tensors: dict[str, Any], *, same_ranks: bool) -> set[str]:
    """Read the tensors of a checkpoint; a collective of all ranks.

    Args:
        folder: A checkpoint folder, of any layout.
        tensors: As `state` returns them, with random numbers; they are overwritten in place.
        same_ranks: Whether the number of ranks is unchanged. If not, random numbers are not read.

    Returns:
        The names of parameters without optimizer state in the checkpoint, because they were frozen.

    Raises:
        UsageError: The checkpoint is of another model or optimizer.
    """
    from torch.distributed import checkpoint

    frozen = _without_state(folder, tensors)
    of_optimizer = tensors.get("optimizer", {})
    kept = {key: of_optimizer.pop(key) for key in list(of_optimizer) if _parameter_of(key) in frozen}
    try:
        with _quiet():
            checkpoint.load({k: v for k, v in tensors.items() if same_ranks or k != "random"}, checkpoint_id=folder)
    except checkpoint.CheckpointException as error:
        raise UsageError(f"checkpoint {folder} does not belong to this model and optimizer: {_cause(error)}") from error
    of_optimizer.update(kept)
    return frozen


def _without_state(folder: Path, tensors: dict[str, Any]) -> set[str]:
    """Return the parameters that have no optimizer state in a checkpoint where other parameters do."""
    from torch.distributed.checkpoint import FileSystemReader

    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    saved = {_parameter_of(key.removeprefix("optimizer.")) for key in keys if key.startswith("optimizer.state.")}
    wanted = {_parameter_of(key) for key in tensors.get("optimizer", {}) if key.startswith("state.")}
    return wanted - saved if saved else set()


def _parameter_of(key: str) -> str:
    """Return the parameter name in a flat key of optimizer state or settings; empty text for other keys."""
    kind, _, rest = key.partition(".")
    return rest.rpartition(".")[0] if kind in ("state", "param_groups") else ""


def apply(
    tensors: dict[str, Any],
    model: Any,
    optimizer: Any,
    replicas: Replicas | None,
    *,
    stepped: bool,
    frozen: set[str] | None = None,
) -> None:
    """Give loaded tensors to a model, its optimizer and its replicas.

    Args:
        tensors: As `state` returns them, after `load`.
        model: The module that holds this rank's parameters.
        optimizer: The optimizer of that module. Its state is cleared if the saved optimizer had none.
        replicas: State of a mode in which replicas do not step together; None otherwise.
        stepped: Whether the saved optimizer had state.
        frozen: Names of parameters without saved optimizer state.
    """
    from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_state_dict

    (of_optimizer,) = (value for name, value in tensors.items() if name.startswith("optimizer"))
    if stepped:
        with without_steps(optimizer):  # `state` has created the state of the optimizer
            set_state_dict(
                model, optimizer, model_state_dict=tensors["model"], optim_state_dict=of_optimizer, options=_options()
            )
    else:
        set_model_state_dict(model, tensors["model"], options=_options())
        for key, group, name in _settings(model, optimizer):
            group[name] = of_optimizer[key]
        optimizer.state.clear()
    for name, parameter in model.named_parameters():
        if name in (frozen or ()):
            optimizer.state.pop(parameter, None)
    if replicas is not None:
        replicas.load(tensors["outer"])


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's warning that one process is alone: it is. Filters belong to all threads; others leave them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def read_progress(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the contents of a checkpoint's JSON file.

    Args:
        folder: A checkpoint folder, of any layout.
        wanted: Names that the file must contain, with this run's values.

    Raises:
        UsageError: There is no complete checkpoint, or it is of another run.
    """
    if _rank() == 0:
        recover(folder)
    _meet()
    try:
        progress = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} contains no complete checkpoint: {error}; give a folder that engine.save() wrote"
        ) from error
    missing = sorted(set(wanted) - set(progress) - _OPTIONAL)
    if progress.get("schema") != _SCHEMA or missing:
        raise UsageError(
            f"checkpoint {folder} ({progress.get('schema')}) has no {', '.join(missing) or _SCHEMA}: it was saved with "
            "another precision, without a schedule or [ema], or with synchronous replicas; load it with the settings "
            "it was saved with"
        )
    if progress.get("replicas") != wanted.get("replicas"):
        raise UsageError(
            f"checkpoint {folder} contains {progress['replicas']} independent replicas, each with its own optimizer; "
            f"load it with layout dp={progress['replicas']} and [local] or [asynchronous]"
        )
    return dict(progress)


def _rank() -> int:
    import torch

    return int(torch.distributed.get_rank()) if torch.distributed.is_initialized() else 0


def _meet() -> None:
    """Wait until all ranks reach this call (barrier)."""
    import torch

    if torch.distributed.is_initialized():
        on_gpu = "nccl" in torch.distributed.get_backend_config()
        torch.distributed.barrier(device_ids=[torch.cuda.current_device()] if on_gpu else None)
