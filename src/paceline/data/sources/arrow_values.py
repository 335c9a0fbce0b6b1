"""Columns of Arrow tables: the column kind of each Arrow type, and the conversion of values for shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import array_of, json_of, number_of, suffix_of_bytes, text_of
from paceline.data.format.model import Column, ColumnKind, Payload, Value

_AS_TEXT = (date, time, timedelta, Decimal, UUID)  # types whose `str` has all of a value
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6}
_DAY_S = 86_400
_TYPES = {str: "text", bytes: "bytes", int: "a whole number", float: "a decimal number", bool: "true or false"}
_ONE_TYPE = "give the column one type in all files"
_OF_FILES = {"bytes", "path"}  # fields of a struct for a file in Hugging Face's datasets


def merged_schema(schemas: Sequence[Any], files: Sequence[Path]) -> Any:
    """Return the schema that holds all columns of all files without loss.

    Args:
        schemas: The schema of each file.
        files: Their paths, for messages.

    Raises:
        UsageError: A column has types that do not fit together.
    """
    import pyarrow

    for schema, file in zip(schemas, files, strict=True):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise UsageError(f"{file} has two columns called {twice[0]!r}; rename one of them")
    plain = [pyarrow.schema([(field.name, _decoded(field.type)) for field in schema]) for schema in schemas]
    try:
        return pyarrow.unify_schemas(plain, promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise UsageError(
            f"the files {', '.join(file.name for file in files[:3])} have columns of different types ({error}); "
            "convert files of one schema at a time"
        ) from error


def kind_of_type(own: Any) -> ColumnKind:
    """Return the column kind for values of an Arrow type; files and bytes become "bytes"."""
    from pyarrow import types

    if types.is_integer(own) or types.is_boolean(own):
        return "int"
    if types.is_floating(own):
        return "float"
    if is_bytes(own):
        return "bytes"
    if hasattr(own, "shape") or _dtype(own) is not None:
        return "array"
    if types.is_nested(own):
        return "json"
    return "text"


def may_be_ragged(own: Any) -> bool:
    """Return whether an Arrow type is lists of lists of numbers, whose inner lists can have different lengths."""
    return not hasattr(own, "shape") and _dtype(own) is not None and _dtype(own.value_type) is not None


def is_ragged(column: Any) -> bool:
    """Return whether any value of a column of lists of lists has ragged or missing inner lists or numbers."""
    return any(_shape(value) is None for value in column.to_pylist() if value is not None)


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, or None if they are ragged."""
    if not isinstance(value, list):
        return ()
    shapes = {() if one is None else _shape(one) for one in value}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(value), *next(iter(shapes), ()))  # type: ignore[misc]


def is_bytes(own: Any) -> bool:
    """Return whether an Arrow type is bytes, or a struct with the bytes of a file and its path."""
    from pyarrow import types

    if types.is_struct(own):
        names = {field.name for field in own}
        return "bytes" in names and names <= _OF_FILES and is_bytes(own.field("bytes").type)
    views = getattr(types, "is_binary_view", lambda _: False)  # pyarrow 15 lacks it
    return bool(types.is_binary(own) or types.is_large_binary(own) or types.is_fixed_size_binary(own) or views(own))


def has_path(own: Any) -> bool:
    """Return whether an Arrow type is a struct with the bytes and the path of a file."""
    from pyarrow import types

    return types.is_struct(own) and is_bytes(own) and any(field.name == "path" for field in own)


def bytes_in(value: Any) -> bytes | None:
    """Return the bytes of a value, which is bytes or a mapping with an entry "bytes"; None without bytes."""
    inside = value.get("bytes") if isinstance(value, Mapping) else value
    return inside if isinstance(inside, bytes) else None


def kept_value(value: Any, column: Column, own: Any) -> Value:
    """Return a value in the form that shards store.

    Args:
        value: The value as a Python object, from Arrow.
        column: Its column.
        own: Its Arrow type.

    Raises:
        ValueError: The value cannot be stored without loss.
    """
    if value is None:
        return None
    if column.is_number:
        return number_of(value, column)
    if column.kind == "text":
        return text_of(_text(value))
    if column.kind == "json":
        return json_of(_plain(value))
    if column.kind == "array":
        return _array(value, own)
    data = bytes_in(value)
    if data is None and not isinstance(value, Mapping):
        raise ValueError(
            f"it is {_TYPES.get(type(value), type(value).__name__)}, and bytes in other files; {_ONE_TYPE}"
        )
    if data is None:
        path = value.get("path") if isinstance(value, Mapping) else None
        raise ValueError(f"it holds no bytes, only the path {path!r}; embed the files in the table")
    return Payload(data=data, suffix=suffix_of_bytes(data))


def without_nanoseconds(own: Any, *, only_durations: bool = False) -> Any:
    """Return an Arrow type with text in place of times in nanoseconds, at any depth.

    Args:
        own: The type.
        only_durations: Whether to put integers in place of durations, which cannot be cast to text, and change no more.
    """
    import pyarrow
    from pyarrow import types

    def field(one: Any) -> Any:
        return one.with_type(without_nanoseconds(one.type, only_durations=only_durations))

    if types.is_struct(own):
        return pyarrow.struct([field(one) for one in own])
    if types.is_map(own):
        return pyarrow.map_(own.key_type, field(own.item_field), own.keys_sorted)
    if types.is_list(own) or types.is_large_list(own):
        return (pyarrow.list_ if types.is_list(own) else pyarrow.large_list)(field(own.value_field))
    if types.is_fixed_size_list(own):
        return pyarrow.list_(field(own.value_field), own.list_size)
    if types.is_duration(own) and own.unit == "ns":
        return pyarrow.int64() if only_durations else pyarrow.string()
    is_ns = (types.is_timestamp(own) or types.is_time64(own)) and own.unit == "ns"
    return pyarrow.string() if is_ns and not only_durations else own


def python_value(scalar: Any) -> Any:
    """Return a value of Arrow as a Python object; times beyond those of Python become text.

    Raises:
        OverflowError: The value is too large, and is no time.
    """
    from pyarrow import types

    own = scalar.type
    try:
        return scalar.as_py()
    except OverflowError:
        if types.is_struct(own):
            return {name: python_value(inner) for name, inner in scalar.items()}
        if types.is_map(own):
            return [(python_value(pair["key"]), python_value(pair["value"])) for pair in scalar.values]
        if types.is_list(own) or types.is_large_list(own) or types.is_fixed_size_list(own):
            return [python_value(inner) for inner in scalar.values]
        return _far_text(scalar)


def _far_text(scalar: Any) -> str:
    """Return a date, time or duration as text, as Python's `datetime` formats it. A time with a time zone becomes UTC.

    Raises:
        OverflowError: The value is of another type.
    """
    from pyarrow import types

    own, value = scalar.type, scalar.value
    if types.is_date(own):
        return str(np.datetime64(value, "D" if types.is_date32(own) else "ms").astype("datetime64[D]"))
    if not types.is_timestamp(own) and not types.is_duration(own):
        raise OverflowError(f"{value} of the type {own} is too large")
    seconds, rest = divmod(value, _PER_SECOND[own.unit])
    microseconds = rest * 10**6 // _PER_SECOND[own.unit]
    if types.is_duration(own):
        days, left = divmod(seconds, _DAY_S)
        return f"{days} days, {timedelta(seconds=left, microseconds=microseconds)}"
    fraction = f".{microseconds:06d}" if rest else ""
    return str(np.datetime64(seconds, "s")).replace("T", " ") + fraction + ("+00:00" if own.tz else "")


def _array(value: Any, own: Any) -> Payload:
    shape = getattr(own, "shape", None)
    if isinstance(value, list) and None in value:
        raise ValueError(
            "its list has a missing value (null), which an array cannot have; fill it, or leave the list out"
        )
    found = np.asarray(value)
    if found.dtype.hasobject or (shape is None and found.dtype.kind not in "biuf"):
        array_of(found)
        raise ValueError("its lists have different lengths, or values are missing")
    dtype = _dtype(own)
    made = found.astype(dtype) if dtype is not None else found
    if not _is_same(found, made):
        raise ValueError(f"a number of its list would change as {made.dtype}; give the column one type in all files")
    return array_of(made if shape is None else made.reshape(shape))


def _is_same(found: Any, made: Any) -> bool:
    """Return whether numbers keep their value in another type."""
    if found.dtype == made.dtype or not found.size:
        return True
    if found.dtype.kind not in "iub":
        return np.array_equal(made.astype(found.dtype), found, equal_nan=True)
    if made.dtype.kind not in "iu":
        return bool(made.tolist() == found.tolist())  # Python compares whole numbers with floats exactly
    limits = np.iinfo(made.dtype)
    return bool(limits.min <= int(found.min()) and int(found.max()) <= limits.max)


def _dtype(own: Any) -> Any:
    """Return the NumPy type of the numbers in an Arrow type of (nested) lists of numbers; None for other types."""
    from pyarrow import types

    inner = own.storage_type if hasattr(own, "storage_type") else own
    depth = 0
    while types.is_list(inner) or types.is_large_list(inner) or types.is_fixed_size_list(inner):
        inner, depth = inner.value_type, depth + 1
    number = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
    return np.dtype(inner.to_pandas_dtype()) if depth and number else None


def _decoded(own: Any) -> Any:
    """Return the type of the values of a dictionary-encoded type; return other types unchanged."""
    from pyarrow import types

    return own.value_type if types.is_dictionary(own) else own


def _plain(value: Any) -> Any:
    """Return a value as JSON types: lists, dictionaries, numbers and text. Dates become text.

    Raises:
        ValueError: The value contains bytes.
    """
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        raise ValueError("it has bytes inside a list or a struct, which JSON cannot keep; make them a column")
    return value if value is None or isinstance(value, bool | int | float) else _text(value)


def _text(value: Any) -> str:
    """Return text, or a date, time, decimal number or UUID as text.

    Raises:
        ValueError: Text would not have all of the value.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, _AS_TEXT):
        named = _TYPES.get(type(value), type(value).__name__)
        raise ValueError(f"it is {named} in a column of text, dates or decimal numbers; {_ONE_TYPE}")
    return str(value)
