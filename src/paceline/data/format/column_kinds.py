"""Column kinds and file suffixes, and the conversion of Python values to the form that shards store."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from paceline.core.errors import UsageError
from paceline.data.format.model import KEY, Column, ColumnKind, Payload

PICTURES = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff", "gif")
TEXTS = ("txt", "json", "jsonl", "csv", "xml", "html", "caption")
NUMBERS = ("cls", "int", "float", "index", "inx", "id")
_SAME = {"jpeg": "jpg"}
_UNNAMED = "unnamed"  # the index column of a CSV file that pandas wrote has an empty name
_MAGIC = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n\x1a\n", "png"), (b"BM", "bmp"), (b"\x93NUMPY", "npy"))
_RIFF, _WEBP = b"RIFF", b"WEBP"


def kind_of_suffix(suffix: str) -> ColumnKind:
    """Return the column kind for files with a suffix; files of kind "int" contain a number as text."""
    last = suffix.lower().rpartition(".")[2]
    if last in PICTURES:
        return "image"
    if last == "npy":
        return "array"
    if last == "float":
        return "float"
    if last in NUMBERS:
        return "int"
    return "text" if last in TEXTS else "bytes"


def column_of_suffix(suffix: str) -> Column:
    """Return the column for files with a suffix: images become ``image``, and ``cls`` files ``label``.

    In a suffix of two parts, as Paceline writes them, the first part is the name: ``caption.txt`` is ``caption``.
    """
    kind = kind_of_suffix(suffix)
    first, dot, _ = suffix.rpartition(".")
    if dot:
        return Column(name=_plain(first), kind=kind)
    if kind == "image":
        return Column(name="image", kind=kind)
    return Column(name="label" if suffix == "cls" else "key" if suffix == KEY else suffix, kind=kind)


def column_names(names: Sequence[str], usual: Callable[[str], str] = str) -> dict[str, str]:
    """Return the name of each column by its name in the source; names have only letters, digits, ``_`` and ``-``.

    Args:
        names: The names in the source.
        usual: Maps a source name to the usual name, such as ``img`` to ``image``; not used if two names become equal.

    Raises:
        UsageError: Two columns would get the same name.
    """
    made = [_plain(usual(name)) for name in names]
    if len(set(made)) < len(made):
        made = [_plain(name) for name in names]
    for place, name in enumerate(made):
        if name in made[:place]:
            both = f"{names[made.index(name)]!r} and {names[place]!r}"
            raise UsageError(f"{both} would both become the column {name}; rename one of them")
    return dict(zip(names, made, strict=True))


def _plain(name: str) -> str:
    """Return a name without characters that suffixes in a tar cannot have; the reserved `__key__` becomes "key"."""
    return "key" if name == KEY else re.sub(r"[^\w-]+", "_", name) or _UNNAMED


def suffix_of_bytes(data: bytes) -> str:
    """Return the file suffix for data by its first bytes, or "bin" if they are unknown."""
    if data[:4] == _RIFF and data[8:12] == _WEBP:
        return "webp"
    return next((suffix for magic, suffix in _MAGIC if data.startswith(magic)), "bin")


def plain_suffix(suffix: str) -> str:
    """Return the standard spelling of a suffix, such as "jpg" for "JPEG"."""
    return _SAME.get(suffix.lower(), suffix.lower())


def array_of(value: Any) -> Payload:
    """Return an array as the bytes of an ``.npy`` file.

    Raises:
        ValueError: The array has Python objects or a mask.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("it is a masked array, whose mask would be lost; give data and mask as two arrays")
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise ValueError("it is an array of Python objects; only arrays of numbers are supported")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return Payload(data=file.getvalue(), suffix="npy")


def text_of(value: Any) -> Payload:
    """Return text as UTF-8 bytes. Of a subclass of `str`, such as an enum, the text itself is stored.

    Raises:
        ValueError: The value is not text, or has half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise ValueError(f"it is {type(value).__name__}, and not text")
    return Payload(data=str.encode(value), suffix="txt")


def json_of(value: Any) -> Payload:
    """Return a list or a dict as JSON.

    Raises:
        ValueError: The value cannot be written as JSON, or would be different when it is read.
    """
    try:
        data = msgspec.json.encode(value)
        same = msgspec.json.decode(data) == value
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(f"it cannot be written as JSON: {error}") from error
    if not same and has_nan(value):
        raise ValueError(
            "it has NaN or an infinity, which JSON cannot store; give None or text in its place, or an array"
        )
    if not same:
        raise ValueError("it would not be the same in JSON, where keys are text; convert keys to text, tuples to lists")
    return Payload(data=data, suffix="json")


def has_nan(value: Any) -> bool:
    """Return whether a list or dict has NaN or an infinity at any depth."""
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(map(has_nan, inner))


def number_of(value: Any, column: Column) -> int | float:
    """Return a number as its column stores it: a 64-bit integer or float.

    Raises:
        ValueError: The conversion would change the number.
    """
    found = float(value) if column.kind == "float" else int(value)
    if found != value and value == value:  # noqa: PLR0124 - NaN is no other number
        raise ValueError(f"{value} would become {found} in a column of kind {column.kind}; give text or an array")
    return found
