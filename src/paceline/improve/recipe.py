"""What is a recipe? Settings in torch's own names, one table per part; a TOML file: data, never code.

In JSON: ``{"loader": {"num_workers": 8, "prefetch_factor": 4}, "precision": {"autocast": "bf16"}}``.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError, did_you_mean
from paceline.improve.settings import SETTINGS, Setting

Recipe = Mapping[str, Mapping[str, Any]]
BASELINE: Recipe = {}
_OF_WORKERS = ("prefetch_factor", "persistent_workers")  # say nothing where there are none


def merged(*recipes: Recipe) -> Recipe:
    """Put recipes together; of a setting that several have, the last counts; without workers, theirs go."""
    found: dict[str, dict[str, Any]] = {}
    for recipe in recipes:
        for table, settings in recipe.items():
            found.setdefault(table, {}).update(settings)
    if not found.get("loader", {}).get("num_workers", 1):
        for key in _OF_WORKERS:
            found["loader"].pop(key, None)
    return found


def keys_of(recipe: Recipe) -> list[str]:
    """Return the names of what a recipe sets, such as ``loader.num_workers``."""
    return [f"{table}.{key}" for table, settings in recipe.items() for key in settings]


def in_words(recipe: Recipe) -> str:
    """Print a recipe on a line: ``loader.num_workers=8, precision.autocast=bf16``; the empty one is the baseline."""
    return ", ".join(f"{t}.{k}={_shown(v)}" for t, s in recipe.items() for k, v in s.items()) or "the baseline"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read(path: Path) -> Recipe:
    """Read a recipe file.

    Raises:
        UsageError: It is not there, is not TOML, or sets what there is not.
    """
    return checked(content_of(path), str(path))


def content_of(path: Path) -> dict[str, Any]:
    """Return what is in a recipe file.

    Raises:
        UsageError: It is not there, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no recipe {path}; `paceline tune train.py` writes one") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"{path} is not a recipe: {getattr(error, 'strerror', None) or error}; `paceline tune` writes one"
        ) from error


def checked(content: Mapping[str, Any], where: str) -> Recipe:
    """Return the content as a recipe.

    Raises:
        UsageError: A table or a setting is unknown, or a value is not allowed.
    """
    tables = {name.partition(".")[0] for name in SETTINGS}
    for table, settings in content.items():
        if table not in tables:
            raise UsageError(f"{where}: recipes have no section [{table}]{_near(table, tables)}")
        if not isinstance(settings, Mapping):
            raise UsageError(f"{where}: {table!r} must be a section such as [{table}], not {settings!r}")
        for key, value in settings.items():
            _check(f"{table}.{key}", value, where)
    return {table: dict(settings) for table, settings in content.items()}


def _check(name: str, value: Any, where: str) -> None:
    setting: Setting | None = SETTINGS.get(name)
    if setting is None:
        raise UsageError(f"{where}: recipes have no setting {name}{_near(name, SETTINGS)}")
    if not setting.allows(value):
        raise UsageError(f"{where}: {name} = {value!r} is not allowed; the value must be {setting.takes}")


def _near(name: str, known: Any) -> str:
    return did_you_mean(name, known, otherwise=f"; known names are: {', '.join(sorted(known))}")


def to_toml(recipe: Recipe, comments: Mapping[str, str] | None = None) -> str:
    """Write a recipe as TOML; `comments` go behind settings, by name."""
    lines: list[str] = []
    for table, settings in recipe.items():
        lines += ["", f"[{table}]"]
        for key, value in settings.items():
            comment = (comments or {}).get(f"{table}.{key}")
            lines.append(f"{key} = {json.dumps(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines).lstrip("\n") + "\n"
