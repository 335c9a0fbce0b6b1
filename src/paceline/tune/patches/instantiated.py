"""Loaders that Hydra creates from a section of a configuration file, by its key ``_target_``."""

from __future__ import annotations

from paceline.tune.patches.configs import ConfigChange, ConfigFile, Scalar, Section, in_yaml
from paceline.tune.patches.edit import Edit
from paceline.tune.patches.evaluation import is_name_of_evaluation

_TARGET = "_target_"
_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_KEYS = ("num_workers", "prefetch_factor", "pin_memory")
_WHY = {
    "persistent_workers": "with persistent_workers=True, the shuffled order would change",
    "cache": "wrap the dataset in a cache where it is created",
}


def change(edit: Edit) -> None:
    """Change the sections that create loaders, but for those of evaluation."""
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
