"""Where do settings come from? Flag, then PACELINE_* variable, then a file of the project, then the default.

The file is ``paceline.toml``, or ``[tool.paceline]`` in ``pyproject.toml``, in this folder or the nearest above
that has one. A table per verb: ``[run]``, keys as the options without dashes (``target_loss = 0.5``).
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from paceline.errors import UsageError


def settings_file(start: Path) -> Path | None:
    """Return the settings file that counts for a folder, or None."""
    for folder in (start, *start.parents):
        own = folder / "paceline.toml"
        if own.is_file():
            return own
        project = folder / "pyproject.toml"
        if project.is_file() and "paceline" in _load(project).get("tool", {}):
            return project
    return None


def settings_map(start: Path | None = None) -> dict[str, Any]:
    """Return the settings of the file in force, by verb and option; empty when there is none.

    Raises:
        UsageError: The file is not TOML, or a verb's settings are not a table.
    """
    path = settings_file(start or Path.cwd())
    if path is None:
        return {}
    content = _load(path)
    found: dict[str, Any] = content.get("tool", {}).get("paceline", {}) if path.name == "pyproject.toml" else content
    for verb, table in found.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {verb!r} must be a table such as [run]; found {table!r}")
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    except OSError:
        return {}
