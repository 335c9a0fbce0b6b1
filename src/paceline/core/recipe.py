"""Recipes: settings with torch's own names, one table per part of the program, stored as TOML.

In JSON: ``{"loader": {"num_workers": 8, "prefetch_factor": 4}, "precision": {"autocast": "bf16"}}``. `SETTINGS` lists
every setting with its allowed values.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError, did_you_mean

Recipe = Mapping[str, Mapping[str, Any]]
BASELINE: Recipe = {}
_OF_WORKERS = ("prefetch_factor", "persistent_workers")  # without workers these settings have no effect


def merge_recipes(*recipes: Recipe) -> Recipe:
    """Return the union of recipes; a later value overrides an earlier one.

    If the result has no loader workers, the settings that only concern workers are dropped.
    """
    found: dict[str, dict[str, Any]] = {}
    for recipe in recipes:
        for table, settings in recipe.items():
            found.setdefault(table, {}).update(settings)
    if not found.get("loader", {}).get("num_workers", 1):
        for key in _OF_WORKERS:
            found["loader"].pop(key, None)
    return found


def setting_keys(recipe: Recipe) -> list[str]:
    """Return the names of the settings in a recipe, such as ``loader.num_workers``."""
    return [f"{table}.{key}" for table, settings in recipe.items() for key in settings]


def describe_recipe(recipe: Recipe) -> str:
    """Return a recipe as one line: ``loader.num_workers=8, precision.autocast=bf16``; ``the baseline`` if empty."""
    return ", ".join(f"{t}.{k}={_shown(v)}" for t, s in recipe.items() for k, v in s.items()) or "the baseline"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe file.

    Raises:
        UsageError: The file is missing, is not TOML, or has an unknown setting.
    """
    return check_recipe(recipe_content(path), str(path))


def recipe_content(path: Path) -> dict[str, Any]:
    """Return the content of a recipe file.

    Raises:
        UsageError: The file is missing, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no recipe {path}; `paceline tune train.py` writes one") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"{path} is not a recipe: {getattr(error, 'strerror', None) or error}; `paceline tune` writes one"
        ) from error


def check_recipe(content: Mapping[str, Any], where: str) -> Recipe:
    """Check the tables, settings and values of a recipe, and return it as a recipe.

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
    setting: RecipeSetting | None = SETTINGS.get(name)
    if setting is None:
        raise UsageError(f"{where}: recipes have no setting {name}{_near(name, SETTINGS)}")
    if not setting.allows(value):
        raise UsageError(f"{where}: {name} = {value!r} is not allowed; the value must be {setting.takes}")


def _near(name: str, known: Any) -> str:
    return did_you_mean(name, known, otherwise=f"; known names are: {', '.join(sorted(known))}")


def recipe_toml(recipe: Recipe, comments: Mapping[str, str] | None = None) -> str:
    """Return a recipe as TOML text. `comments` maps names of settings to comments; each comment follows its setting."""
    lines: list[str] = []
    for table, settings in recipe.items():
        lines += ["", f"[{table}]"]
        for key, value in settings.items():
            comment = (comments or {}).get(f"{table}.{key}")
            lines.append(f"{key} = {json.dumps(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines).lstrip("\n") + "\n"


@dataclass(frozen=True, kw_only=True)
class RecipeSetting:
    """The allowed values of one setting of a recipe."""

    takes: str  # the allowed values, in words
    allows: Callable[[Any], bool]


def _count(least: int, most: int) -> RecipeSetting:
    def allows(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return RecipeSetting(takes=f"a whole number from {least} to {most}", allows=allows)


def _share() -> RecipeSetting:
    def allows(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1

    return RecipeSetting(takes="a share from 0 to 1", allows=allows)


def _factor() -> RecipeSetting:
    def allows(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and 1e-6 <= value <= 1e6

    return RecipeSetting(takes="a factor from 1e-6 to 1e6", allows=allows)


def _one_of(*values: Any) -> RecipeSetting:
    words = ", ".join(str(v).lower() if isinstance(v, bool) else repr(v) for v in values)
    return RecipeSetting(takes=words, allows=lambda value: any(type(value) is type(v) and value == v for v in values))


SETTINGS: Mapping[str, RecipeSetting] = {
    "loader.batch_size": _count(1, 1 << 30),
    "loader.num_workers": _count(0, 256),
    "loader.evaluation_workers": _count(1, 256),
    "loader.prefetch_factor": _count(1, 64),
    "loader.persistent_workers": _one_of(True, False),
    "loader.pin_memory": _one_of(True, False),
    "loader.threads": _count(1, 256),
    "loader.cache": _one_of(True),
    "loader.device_prefetch": _one_of(True),
    "precision.autocast": _one_of("bf16", "fp16"),
    "precision.tf32": _one_of(True, False),
    "compute.compile": _one_of("default", "reduce-overhead", "max-autotune"),
    "compute.channels_last": _one_of(True),
    "compute.num_threads": _count(1, 1024),
    "compute.cudnn_benchmark": _one_of(True),
    "compute.sdpa_backend": _one_of("flash", "efficient", "cudnn", "math"),
    "optimizer.fused": _one_of(True),
    "optimizer.foreach": _one_of(True),
    "optimizer.state_8bit": _one_of(True),
    "optimizer.lr_factor": _factor(),
    "memory.checkpoint_every": _count(1, 1024),
    "memory.activation_budget": _share(),
    "memory.micro_batches": _count(2, 4096),
    "ddp.bucket_cap_mb": _count(1, 4096),
    "ddp.static_graph": _one_of(True),
    "ddp.gradient_as_bucket_view": _one_of(True),
    "ddp.find_unused_parameters": _one_of(False),
    "ddp.comm_hook": _one_of("fp16", "bf16", "powersgd"),
    "ddp.no_sync": _one_of(True),
    "allocator.expandable_segments": _one_of(True),
    "allocator.retain_host_memory": _one_of(True),
    "debug.anomaly_detection": _one_of(False),
    "debug.deterministic_algorithms": _one_of(False),
    "debug.distributed_debug": _one_of(False),
    "debug.launch_blocking": _one_of(False),
}
