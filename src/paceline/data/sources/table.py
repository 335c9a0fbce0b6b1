"""Conversion source: a CSV or TSV file with a column of paths; other columns become labels, numbers or text."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import column_names
from paceline.data.format.model import Column
from paceline.data.sources.files import LABEL, Files, file_column, numbers_of, size_of

_WHOLE, _DECIMAL = re.compile(r"[-+]?[0-9]+"), re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NAME = re.compile(r"[-+]?0[0-9]+")  # 007 is a name, not a number
_WHOLE_NUMBERS, _LONGEST_WHOLE = range(-(1 << 63), 1 << 63), 20  # 64-bit integers, and the most characters of one
_LONGEST_CELL = (1 << 31) - 1  # the limit of the csv module
_PATHS, _LABELS = ("path", "file", "filename", "file_name", "image"), (LABEL, "class", "target")

Values = list[str | int | float | None]


def file_table(path: Path, classes: Sequence[str] | None = None) -> Files:
    """Return the files in the path column of a table. Paths are relative to the folder of the table.

    Args:
        path: The table. The separator is a tab for the suffix `.tsv`, and a comma otherwise.
        classes: The names of the classes in order, if labels are names; None for the sorted labels.

    Raises:
        UsageError: The file has no column of paths or no rows, or is no text; or a label is not among the classes.
    """
    heads, rows = _read(path)
    if not rows:
        raise UsageError(f"{path} has no rows")
    twice = sorted({head for head in heads if heads.count(head) > 1})
    if twice:
        raise UsageError(f"{path} has two columns called {twice[0]!r}; rename one of them")
    files_in, labels_in = _paths_head(path, heads), _head(heads, _LABELS)
    if labels_in is None and classes is not None:
        raise UsageError(f"{path} has no column of labels ({', '.join(_LABELS)}), and --classes-from needs one")
    files = [_filled(path, line, row, files_in) for line, row in rows]
    own = file_column(files)
    names = column_names(
        [own.name, *(head for head in heads if head != files_in)], lambda name: _usual(name, labels_in)
    )
    columns, values = [own], dict[str, Values]()
    named: Sequence[str] = ()
    for head in heads:
        if head == files_in:
            continue
        if head == labels_in:
            column, values[LABEL], named = _labels(path, _without_spaces(path, rows, head), classes)
        else:
            column, values[names[head]] = _typed(names[head], [row[head] for _, row in rows])
        columns.append(column)
    return Files(path.parent, files, [size_of(path.parent / file) for file in files], columns, values, named)


def _read(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the column names of a table, and the line number and cells of each row."""
    try:
        with long_cells(), path.open(newline="", encoding="utf-8-sig") as file:
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            reader = csv.DictReader(file, delimiter=separator, strict=True)  # else an unclosed quote swallows the rest
            return list(reader.fieldnames or []), list(_checked(path, reader))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    except csv.Error as error:
        raise UsageError(f"{path} cannot be read as {path.suffix[1:].upper() or 'CSV'}: {error}") from error


@contextmanager
def long_cells() -> Iterator[None]:
    """Return a context in which `csv` reads cells of more than 128 KiB."""
    before = csv.field_size_limit(_LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _checked(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[int, dict[str, str]]]:
    for row in reader:
        if fault := fault_of_row(row):
            raise UsageError(f"{path}, line {reader.line_num}: {fault}")
        yield reader.line_num, row


def fault_of_row(row: Mapping[str | None, object]) -> str:
    """Return a message if a row of `csv.DictReader` has more or fewer cells than the first line; else ""."""
    if None in row:
        return "it has more cells than the first line; quote cells that contain a separator"
    return "it has fewer cells than the first line; add separators" if None in row.values() else ""


def _filled(path: Path, line: int, row: dict[str, str], head: str) -> str:
    if not row[head]:
        raise UsageError(f"{path}, line {line}: it has no {head}; fill it in")
    return row[head]


def _without_spaces(path: Path, rows: Sequence[tuple[int, dict[str, str]]], head: str) -> list[str]:
    """Return the label of each row, stripped of spaces at its ends.

    Raises:
        UsageError: A row has no label, or two labels differ only in spaces at their ends.
    """
    found: dict[str, str] = {}
    labels = [_filled(path, *row, head) for row in rows]
    for label in labels:
        if found.setdefault(label.strip(), label) != label:
            raise UsageError(
                f"{path}: the labels {found[label.strip()]!r} and {label!r} differ only in spaces at their ends; "
                "write each class in one way"
            )
    return [label.strip() for label in labels]


def _labels(path: Path, labels: list[str], classes: Sequence[str] | None) -> tuple[Column, Values, Sequence[str]]:
    """Return labels as numbers: unchanged if all are numbers, else the index of each name in the classes."""
    if classes is None:
        column, values = _typed(LABEL, labels)
        if column.kind != "text" and len(set(values)) == len(set(labels)):  # `01` and `1` are two names
            return column, values, ()
    numbers, named = numbers_of(path, labels, classes)
    return Column(name=LABEL, kind="int"), list(numbers), named


def _typed(name: str, cells: list[str]) -> tuple[Column, Values]:
    """Return a column as numbers if all cells are numbers, else as text. Empty cells among numbers become None."""
    some = [cell.strip() for cell in cells if cell.strip()]
    named = name != LABEL and any(_NAME.fullmatch(cell) for cell in some)
    if not some or named:
        return Column(name=name, kind="text"), list(cells)
    if all(_WHOLE.fullmatch(cell) for cell in some):
        if all(len(cell) <= _LONGEST_WHOLE and int(cell) in _WHOLE_NUMBERS for cell in some):
            return Column(name=name, kind="int"), [int(cell) if cell.strip() else None for cell in cells]
    elif all(is_decimal(cell) for cell in some):
        return Column(name=name, kind="float"), [float(cell) if cell.strip() else None for cell in cells]
    return Column(name=name, kind="text"), list(cells)


def is_decimal(cell: str) -> bool:
    """Return whether a text is a number that a 64-bit float can store: within its range, and exact if integer."""
    if not _DECIMAL.fullmatch(cell) or math.isinf(float(cell)):
        return False
    if not float(cell) and re.search("[1-9]", re.split("[eE]", cell)[0]):  # too small, such as 1e-400
        return False
    whole, _, fraction = cell.partition(".")
    return bool(fraction.strip("0")) or not _WHOLE.fullmatch(whole) or int(float(cell)) == int(whole)


def _usual(name: str, labels_in: str | None) -> str:
    return LABEL if name == labels_in else name.strip()


def _head(heads: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Return the column with the first matching name of a list, ignoring case, or None."""
    return next((head for name in wanted for head in heads if head.strip().lower() == name), None)


def _paths_head(path: Path, heads: Sequence[str]) -> str:
    found = _head(heads, _PATHS)
    if found is None:
        raise UsageError(
            f"{path} has the columns {', '.join(heads) or 'none'}; one must be called {' or '.join(_PATHS)}; "
            "a table of text takes --tokenizer"
        )
    return found
