"""Any Python `Dataset`: what it returns is kept as it is, pictures without loss, tensors as NumPy's own format."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paceline.data.kinds import array_of, number_of, text_of
from paceline.data.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.errors import UsageError

_PROBED = 16  # samples by which sizes are guessed


class DatasetSource:
    """What a name such as ``my_module:train_set`` stands for: a data set, or a function that makes one."""

    version = ""

    def __init__(self, name: str, columns: Sequence[str] = ()) -> None:
        """Name a data set.

        Args:
            name: Module and name in it.
            columns: What the parts of a sample are to be called, where it is a tuple.

        Raises:
            UsageError: There is no such thing, or it is no data set.
        """
        self._name = name
        self._wanted = tuple(columns)
        self._dataset = loaded(name)

    def __reduce__(self) -> tuple[type[DatasetSource], tuple[str, Sequence[str]]]:
        return type(self), (self._name, self._wanted)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def classes(self) -> Sequence[str]:
        """Names of the labels, as torchvision's data sets have them."""
        found = getattr(self._dataset, "classes", ())
        return [str(one) for one in found] if isinstance(found, list | tuple) else ()

    @cached_property
    def columns(self) -> Sequence[Column]:
        """What the first sample has; all have to have the same."""
        return [Column(name=name, kind=kind_of(value)) for name, value in self._parts(0).items()]

    @cached_property
    def _usual_size(self) -> int:
        places = np.linspace(0, len(self) - 1, min(_PROBED, len(self))).astype(int)
        return int(np.mean([_bytes(self.sample(int(place))) for place in places]))

    def size(self, number: int) -> int:
        """Return what some samples have on average."""
        return self._usual_size

    def name(self, number: int) -> str:
        """Return the number."""
        return f"{self._name}[{number}]"

    def sample(self, number: int) -> Sample:
        """Take a sample, and write its parts as bytes and numbers."""
        parts = self._parts(number)
        names = [column.name for column in self.columns]
        if list(parts) != names:
            raise BadSample(f"{self.name(number)} has {', '.join(parts)}; the first sample has {', '.join(names)}")
        return {column.name: _value(parts[column.name], column, self.name(number)) for column in self.columns}

    def _parts(self, number: int) -> dict[str, Any]:
        try:
            sample = self._dataset[number]
        except Exception as error:
            raise BadSample(f"{self.name(number)}: {type(error).__name__}: {error}") from error
        if isinstance(sample, Mapping):
            return {str(key): value for key, value in sample.items()}
        parts = list(sample) if isinstance(sample, list | tuple) else [sample]
        names = self._wanted or [_usual_name(place, value) for place, value in enumerate(parts)]
        if len(names) != len(parts):
            raise BadSample(f"{self.name(number)} has {len(parts)} parts; there are names for {len(names)}")
        return dict(zip(names, parts, strict=True))


def loaded(name: str) -> Any:
    """Return a data set by its name.

    Raises:
        UsageError: There is none.
    """
    module, colon, inside = name.partition(":")
    if not colon or not inside:
        raise UsageError(f"--dataset {name}: write MODULE:NAME, such as my_data:train_set")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for part in inside.split("."):
            found = getattr(found, part)
        if not hasattr(found, "__getitem__") and callable(found):
            found = found()
    except Exception as error:
        raise UsageError(f"--dataset {name}: {type(error).__name__}: {error}") from error
    if not hasattr(found, "__getitem__") or not hasattr(found, "__len__"):
        raise UsageError(f"--dataset {name}: {type(found).__name__} has no __len__ and __getitem__; a Dataset has both")
    return found


def kind_of(value: Any) -> ColumnKind:
    """Return the kind of column that a value belongs in.

    Raises:
        BadSample: There is none.
    """
    if isinstance(value, bool | int | np.integer):
        return "int"
    if isinstance(value, float | np.floating):
        return "float"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bytes | bytearray):
        return "bytes"
    if hasattr(value, "tobytes") and hasattr(value, "getbands"):
        return "image"
    if hasattr(value, "__array__"):
        return "array"
    raise BadSample(
        f"a sample has a {type(value).__name__}; numbers, text, bytes, pictures, arrays and tensors can be kept"
    )


def _value(value: Any, column: Column, name: str) -> Value:
    kind = kind_of(value)
    if kind != column.kind and not (kind == "int" and column.kind == "float"):
        raise BadSample(f"{name}: {column.name} is of kind {kind}, that of the first sample is {column.kind}")
    if column.is_number:
        return number_of(value, column)
    if kind == "text":
        return text_of(value)
    if kind == "bytes":
        return Payload(data=bytes(value), suffix="bin")
    if kind == "image":
        file = io.BytesIO()
        value.save(file, format="PNG", compress_level=1)
        return Payload(data=file.getvalue(), suffix="png")
    try:
        return array_of(value)
    except ValueError as error:
        raise BadSample(f"{name}: {column.name}: {error}") from error


def _usual_name(place: int, value: Any) -> str:
    if place == 1 and kind_of(value) == "int":
        return "label"
    return {"image": "image"}.get(kind_of(value), f"part{place}")


def _bytes(sample: Sample) -> int:
    return sum(len(value.data) if isinstance(value, Payload) else 8 for value in sample.values())
