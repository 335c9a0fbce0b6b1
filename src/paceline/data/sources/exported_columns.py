"""The file `columns.json`, which `paceline data export` writes beside files that do not tell the kinds of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from paceline.data.format.model import ColumnKind

COLUMNS_FILE = "columns.json"
CLASSES_FILE = "classes.txt"  # the names of the classes, for other programs


class ExportedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `columns.json`: the kinds of columns by their names, and the names of the classes."""

    columns: Mapping[str, ColumnKind]
    classes: Sequence[str] = ()


def exported_columns(folder: Path) -> ExportedColumns:
    """Return the columns of exported files in a folder; without columns if the folder has no such description."""
    path = folder / COLUMNS_FILE
    if not path.is_file():
        return ExportedColumns(columns={})
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExportedColumns)
    except (OSError, msgspec.MsgspecError):
        return ExportedColumns(columns={})  # the file is from another program
