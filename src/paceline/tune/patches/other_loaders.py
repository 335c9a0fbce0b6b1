"""Loaders for evaluation, and loaders that Hydra creates from a configuration.

Evaluation loaders are recognized by their names, the names of their data sets, and the methods that create
them.
"""

from __future__ import annotations

import re

import libcst as cst

from paceline.tune.patches.edit import Edit
from paceline.tune.patches.source.configs import ConfigChange, ConfigFile, Scalar, Section, in_yaml
from paceline.tune.patches.source.program import ProgramFiles, function_around
from paceline.tune.patches.source.syntax_tree import Tree, argument, code_of, value_of

_WORDS = r"val|valid|validation|test|testing|eval|evaluation|dev|predict"
_THINGS = r"set|sets|loader|loaders|data|dataset|dataloader|ds|dl|iter|gen"
_EVALUATION = re.compile(rf"(?<![a-z])({_WORDS})(?:{_THINGS})?(?![a-z])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ORDER = ("dataset", "batch_size", "shuffle", "sampler")
_TARGET = "_target_"
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_KEYS = ("num_workers", "prefetch_factor", "pin_memory")
_WHY = {
    "persistent_workers": "with persistent_workers=True, the shuffled order would change",
    "cache": "wrap the dataset in a cache where it is created",
}


def is_evaluation(program: ProgramFiles, tree: Tree, call: cst.Call) -> bool:
    """Return whether a call creates an evaluation loader, judged by names. A loader that shuffles is for training.

    Args:
        program: The program.
        tree: The syntax tree of the call's file.
        call: A call that creates a loader.
    """
    if any(argument(call, name, _ORDER) is not None for name in ("sampler", "batch_sampler")):
        return False
    if (value_of(call, "shuffle", _ORDER) or "False") != "False":
        return False
    order = ("", *_ORDER) if program.is_partial(tree, call) else _ORDER
    dataset = argument(call, "dataset", order)
    names = [code_of(dataset.value)] if dataset is not None and not dataset.star else []
    assign = next((one for one in tree.above(call) if isinstance(one, cst.Assign)), None)
    names += [code_of(target.target) for target in assign.targets] if assign is not None else []
    function = function_around(tree, call)
    if assign is None and function is not None:
        names.append(function.name.value)
    return any(is_name_of_evaluation(name) for name in names) and not any("train" in name.lower() for name in names)


def is_name_of_evaluation(name: str) -> bool:
    """Return whether a name is used for evaluation, such as ``val_loader`` or ``testset``."""
    return _EVALUATION.search(_CAMEL.sub("_", name)) is not None


def change(edit: Edit) -> None:
    """Change the configuration sections from which Hydra creates loaders, except those for evaluation."""
    for config in edit.program.configs:
        scalars, sections = config.content
        made = [one.keys[:-1] for one in scalars if one.keys[-1:] == (_TARGET,) and one.text.strip("\"'") in _LOADERS]
        for section in sections:
            if section.keys in made and not any(is_name_of_evaluation(key) for key in section.keys):
                _change(edit, config, section)


def _change(edit: Edit, config: ConfigFile, section: Section) -> None:
    where = f"{config.source.path}:{section.line}"
    values = {one.keys[-1]: one for one in config.content[0] if one.keys[:-1] == section.keys}
    is_alone = edit.settings.get("num_workers", values["num_workers"].text if "num_workers" in values else 0) in (
        0,
        "0",
    )
    for key in sorted(edit.settings):
        if key in _WHY:
            edit.stay(key, f"{where} is a section from which Hydra creates the loader: {_WHY[key]}")
        elif key in _KEYS and not (is_alone and key == "prefetch_factor"):
            _set(edit, config, section, values.get(key), key)


def _set(edit: Edit, config: ConfigFile, section: Section, now: Scalar | None, key: str) -> None:
    value = in_yaml(edit.settings[key])
    path = ".".join((*section.keys, key))
    if now is not None and "${" in now.text:
        edit.stay(key, f"{config.source.path}:{now.line} has {key}: {now.text}: set what it refers to, to {value}")
        return
    if any(word.lstrip("+").startswith(f"{path}=") for word in edit.program.command):
        edit.stay(key, f"the command sets {path}: set it to {value}")
        return
    edit.place(key)
    place = (now.start, now.end, value) if now is not None else (section.at, section.at, "")
    text = place[2] or section.form.format(key=key, value=value)
    edit.program.changes[config.source.path].append(ConfigChange(start=place[0], end=place[1], text=text))
