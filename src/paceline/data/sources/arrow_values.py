"""Columns of Arrow tables: the column kind of each Arrow type, and the conversion of values for shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import array_of, json_of, number_of, suffix_of_bytes, text_of
from paceline.data.format.model import Column, ColumnKind, Payload, Value

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
    return bool(types.is_binary(own) or types.is_large_binary(own) or types.is_fixed_size_binary(own))


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
        return text_of(value)
    if column.kind == "json":
        return json_of(_plain(value))
    if column.kind == "array":
        return _array(value, own)
    data = bytes_in(value)
    if data is None:
        path = value.get("path") if isinstance(value, Mapping) else None
        raise ValueError(f"it holds no bytes, only the path {path!r}; embed the files in the table")
    return Payload(data=data, suffix=suffix_of_bytes(data))


def _array(value: Any, own: Any) -> Payload:
    shape = getattr(own, "shape", None)
    found = np.asarray(value)
    if found.dtype.hasobject or (shape is None and found.dtype.kind not in "biuf"):
        array_of(found)
        raise ValueError("its lists have different lengths, or values are missing")
    dtype = _dtype(own)
    made = found.astype(dtype) if dtype is not None else found
    return array_of(made if shape is None else made.reshape(shape))


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
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)
