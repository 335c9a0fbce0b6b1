"""How does a program say it whose loaders are made by transformers' Trainer? By arguments of ``TrainingArguments``."""

from __future__ import annotations

import libcst as cst

from paceline.improve.patches.arguments import unpacks, value_of, with_argument
from paceline.improve.patches.edit import Edit

NAMES = frozenset({"transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"})
_ORDER = ("output_dir",)
_PARSERS = frozenset({"transformers.HfArgumentParser"})
_KEYS = ("num_workers", "prefetch_factor", "pin_memory")  # each with `dataloader_` before it
_WHY = {
    "persistent_workers": "with dataloader_persistent_workers=True of the Trainer, dropout would draw other random "
    "numbers",
    "cache": "the Trainer creates the loader; wrap the dataset that you pass to the Trainer",
}


def with_loader(edit: Edit, original: cst.Call, call: cst.Call) -> cst.Call:
    """Return a call that makes Trainer's arguments with the loader's settings; other calls as they are.

    A program that parses them has no such call: it is told what to type.
    """
    names = edit.tree.names(original.func)
    if names & _PARSERS and NAMES & {name for arg in original.args for name in _named(edit, arg.value)}:
        for key in sorted(edit.settings):
            option = f"give the program --dataloader_{key} {edit.settings[key]}"
            edit.stay(key, f"{edit.where(original)} reads the value from the command line: {_WHY.get(key, option)}")
    if not names & NAMES:
        return call
    for key in sorted(edit.settings):
        call = _with(edit, key, original, call)
    return call


def _with(edit: Edit, key: str, original: cst.Call, call: cst.Call) -> cst.Call:
    if key not in _KEYS:
        edit.stay(key, f"{edit.where(original)}: {_WHY[key]}")
    elif unpacks(call):
        edit.stay(key, f"{edit.where(original)} passes its arguments with * or **")
    elif key == "prefetch_factor" and not _workers(edit, call):
        edit.stay(key, f"{edit.where(original)} has no dataloader_num_workers, so the recipe must also set num_workers")
    else:
        edit.place(key)
        return with_argument(call, f"dataloader_{key}", repr(edit.settings[key]), _ORDER)
    return call


def _workers(edit: Edit, call: cst.Call) -> bool:
    given = value_of(call, "dataloader_num_workers") or "0"
    return bool(edit.settings.get("num_workers", given.isdigit() and int(given)))


def _named(edit: Edit, node: cst.BaseExpression) -> set[str]:
    parts = [one.value for one in node.elements] if isinstance(node, cst.Tuple | cst.List) else [node]
    return {name for part in parts for name in edit.tree.names(part)}
