"""Edits of the arguments of transformers' ``TrainingArguments``, for loaders that the Trainer creates."""

from __future__ import annotations

import libcst as cst

from paceline.tune.patches.edit import Edit
from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.placing import Placing, change_origin, find_place
from paceline.tune.patches.source.configs import Section
from paceline.tune.patches.source.declarations import declarations
from paceline.tune.patches.source.syntax_tree import value_of, with_argument, with_entry
from paceline.tune.patches.source.uses import ARGUMENTS

_ORDER = ("output_dir",)
_PARSERS = frozenset({"transformers.HfArgumentParser"})
_KEYS = ("num_workers", "prefetch_factor", "pin_memory")  # each with the prefix `dataloader_`
_WHY = {
    "persistent_workers": "with dataloader_persistent_workers=True of the Trainer, dropout would draw other random "
    "numbers",
    "cache": "the Trainer creates the loader; wrap the dataset that you pass to the Trainer",
}


def with_loader(edit: Edit, original: cst.Call, call: cst.Call) -> cst.Call:
    """Add the loader settings to a call that creates ``TrainingArguments``; return other calls unchanged.

    For a program that parses these arguments, change its configuration file or record the options that the user has to
    give.
    """
    names = edit.tree.names(original.func)
    if names & _PARSERS and ARGUMENTS & {name for arg in original.args for name in _named(edit, arg.value)}:
        for key in sorted(edit.settings):
            _parsed(edit, key, original)
    if not names & ARGUMENTS:
        return call
    for key in sorted(edit.settings):
        call = _with(edit, key, original, call)
    return call


def _with(edit: Edit, key: str, original: cst.Call, call: cst.Call) -> cst.Call:
    if key not in _KEYS:
        edit.stay(key, f"{edit.where(original)}: {_WHY[key]}")
    elif key == "prefetch_factor" and not _workers(edit, call):
        edit.stay(key, f"{edit.where(original)} has no dataloader_num_workers, so the recipe must also set num_workers")
    else:
        return _set(edit, key, original, call)
    return call


def _set(edit: Edit, key: str, original: cst.Call, call: cst.Call) -> cst.Call:
    """Set an argument of the call, or change its value at the place of the program that sets it."""
    name, value = f"dataloader_{key}", edit.settings[key]
    found = find_place(edit.program, edit.tree, original, name, value, _ORDER)
    if found.where == "nowhere":
        edit.stay(key, f"{edit.where(original)} {found.why_not}")
        return call
    edit.place(key)
    if found.where == "origin":
        change_origin(edit.program, found, name, value)
        return call
    if found.where == "over":
        return with_entry(call, name, repr(value))
    return with_argument(call, name, repr(value), _ORDER)


def _parsed(edit: Edit, key: str, parser: cst.Call) -> None:
    """Set a value that HfArgumentParser reads, in the configuration file that the command names.

    If this is not possible, record that the setting stays in the recipe and which option the user has to give.
    """
    name, value = f"dataloader_{key}", edit.settings[key]
    option = f"give the program --{name} {value}"
    files = _files(edit) if key in _KEYS else []
    known = [one for one in declarations(edit.program, name) if one.config is not None]
    if len(known) == 1 and key in _KEYS and not any(word.startswith(f"--{name}") for word in edit.program.command):
        found = Placing(where="origin", origin=known[0])
    elif len(files) == 1 and not known:
        found = Placing(where="origin", section=files[0])
    else:
        why = f"reads the value from the command line: {_WHY.get(key, option)}"
        edit.stay(key, f"{edit.where(parser)} {why}")
        return
    edit.place(key)
    change_origin(edit.program, found, name, value)


def _files(edit: Edit) -> list[tuple[SourceFile, Section]]:
    """Return the top-level sections of the configuration files that the command names."""
    words = set(edit.program.command)
    named = [one for one in edit.program.configs if words & {str(one.source.path), f"./{one.source.path}"}]
    return [(one.source, section) for one in named for section in one.content[1] if not section.keys]


def _workers(edit: Edit, call: cst.Call) -> bool:
    given = value_of(call, "dataloader_num_workers") or "0"
    return bool(edit.settings.get("num_workers", given.isdigit() and int(given)))


def _named(edit: Edit, node: cst.BaseExpression) -> set[str]:
    parts = [one.value for one in node.elements] if isinstance(node, cst.Tuple | cst.List) else [node]
    return {name for part in parts for name in edit.tree.names(part)}
