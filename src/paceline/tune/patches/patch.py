"""Write a recipe into a program's sources.

All tables of the recipe are applied in one pass over each file. A setting that cannot be written into the
sources stays in the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.core.recipe import Recipe
from paceline.inprocess.settings.allocator import RETAINS
from paceline.tune.patches import compute, ddp, debug, loader, optimizer, precision
from paceline.tune.patches.edit import Edit, begun, edited
from paceline.tune.patches.model import Edited, Patch, SourceFile, UnpatchedSetting
from paceline.tune.patches.source.configs import ConfigFile, with_changes
from paceline.tune.patches.source.program import ProgramFiles

_TABLES: Mapping[str, tuple[type[Edit], tuple[str, ...], str]] = {
    "loader": (loader.LoaderEdit, loader.KEYS, loader.NOWHERE),
    "precision": (precision.PrecisionEdit, precision.KEYS, precision.NOWHERE),
    "compute": (compute.ComputeEdit, compute.KEYS, compute.NOWHERE),
    "optimizer": (optimizer.OptimizerEdit, optimizer.KEYS, optimizer.NOWHERE),
    "ddp": (ddp.DdpEdit, ddp.KEYS, ddp.NOWHERE),
    "debug": (debug.DebugEdit, debug.KEYS, debug.NOWHERE),
}
_YOURS = "the setting changes the training algorithm: change the value where the program defines it"
_WHY = {
    "loader.threads": "DataLoader has no argument for loader threads",
    "loader.batch_size": _YOURS,
    "loader.device_prefetch": "the setting needs a second CUDA stream in the training loop; DataLoader has no "
    "argument for this",
    "precision.autocast": "fp16 needs a GradScaler around the backward pass and the optimizer step of the training "
    "loop",
    "compute.sdpa_backend": "the setting needs the context manager torch.nn.attention.sdpa_kernel around the code "
    "that calls "
    "the model",
    "optimizer.lr_factor": _YOURS,
    "optimizer.state_8bit": "the setting needs an optimizer of another library",
    "ddp.comm_hook": "the setting needs a call of register_comm_hook on the wrapped model",
    "ddp.no_sync": "the setting needs the context manager model.no_sync() around all micro-steps except the last",
    "debug.launch_blocking": "unset CUDA_LAUNCH_BLOCKING where it is set, in the shell or in the program",
    "debug.distributed_debug": "unset TORCH_DISTRIBUTED_DEBUG in the shell",
    "allocator.retain_host_memory": "the setting belongs in the environment, before the program starts: "
    + " ".join(f"{name}={value}" for name, value in RETAINS.items()),
    "allocator.expandable_segments": "the setting belongs in the environment, before the program imports torch",
}
_WITH_THREADS = "the setting belongs to loader.threads, which stays in the recipe"
_SPEAKS = (
    "DataLoader",
    "TrainingArguments",
    "optim",
    "DistributedDataParallel",
    "torch.set_",
    "torch.backends",
    "detect_anomaly",
    "use_deterministic_algorithms",
    "Trainer",
)  # words that a file with something to edit contains
_NONE = "Paceline cannot write this setting into the source"


def patched(
    sources: Sequence[SourceFile], recipe: Recipe, command: Sequence[str] = (), configs: Sequence[ConfigFile] = ()
) -> Patch:
    """Return the sources with a recipe written into them.

    Args:
        sources: The program's own files, including the script.
        recipe: The recipe.
        command: The command that starts the program, for the options that it sets.
        configs: The configuration files that the program reads.
    """
    can = {table: _expressible(table, settings) for table, settings in recipe.items()}
    tables = [(_TABLES[table][0], settings) for table, settings in can.items() if settings]
    program = ProgramFiles(sources=sources, command=command, configs=configs)
    edits = {source: begun(source, tables, program) for source in sources if tables and _speaks(source)}
    found = [_edited(source, edits.get(source, ()), program) for source in sources]
    stays = [one for table, settings in recipe.items() for one in _staying(table, settings, can[table], found)]
    after = [replace(source, text=one.text) for source, one in zip(sources, found, strict=True)]
    others = [one.source for one in configs if program.changes.get(one.source.path)]
    after += [with_changes(one, program.changes[one.path]) for one in others]
    return Patch(before=[*sources, *others], after=after, stays=list(dict.fromkeys(stays)))


def _expressible(table: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if table not in _TABLES or "threads" in settings:
        return {}
    keys = _TABLES[table][1]
    return {key: value for key, value in settings.items() if key in keys and value != "fp16"}


def _speaks(source: SourceFile) -> bool:
    return source.is_script or any(word in source.text for word in _SPEAKS)


def _edited(source: SourceFile, edits: Sequence[Edit], program: ProgramFiles) -> Edited:
    if edits or program.has_values(source):
        return edited(source, edits, program)
    return Edited(text=source.text, placed=frozenset(), stays=())


def _staying(
    table: str, settings: Mapping[str, Any], can: Mapping[str, Any], found: Sequence[Edited]
) -> list[UnpatchedSetting]:
    """Return the settings of a table that stay in the recipe, with the reasons."""
    names = {f"{table}.{key}": key for key in settings}
    told = [one for edit in found for one in edit.stays if one.setting in names]
    known = {one.setting for one in told} | {name for edit in found for name in edit.placed}
    other = _WITH_THREADS if "threads" in settings else _NONE
    why = {name: _TABLES[table][2] if key in can else _WHY.get(name, other) for name, key in names.items()}
    return [*told, *(UnpatchedSetting(setting=name, why=why[name]) for name in names if name not in known)]
