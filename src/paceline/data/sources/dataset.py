"""Any Python `Dataset`: what it returns is kept as it is, tensors in NumPy's own format."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import array_of, column_names, json_of, number_of, text_of
from paceline.data.format.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.data.sources.dataset_images import Written, image_payload, images_choice

_KINDS: tuple[tuple[ColumnKind, Any], ...] = (
    ("int", bool | int | np.bool_ | np.integer),
    ("float", float | np.floating),
    ("text", str),
    ("bytes", bytes | bytearray),
    ("json", list | dict),
)
_PROBED = 16  # samples by which sizes are guessed


class DatasetSource:
    """What a name such as ``my_module:train_set`` stands for: a data set, or a function that makes one."""

    version = ""

    def __init__(self, name: str, columns: Sequence[str] = (), images: Written | None = None) -> None:
        """Name a data set.

        Args:
            name: Module and name in it.
            columns: What the parts of a sample are to be called, where it is a tuple.
            images: How to write images that have no file of their own; None: they are refused.

        Raises:
            UsageError: There is no such thing, or it is no data set.
        """
        self._name = name
        self._wanted = tuple(column_names(columns).values())
        self._images = images
        self._dataset = loaded(name)

    def __reduce__(self) -> tuple[type[DatasetSource], tuple[str, Sequence[str], Written | None]]:
        return type(self), (self._name, self._wanted, self._images)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def classes(self) -> Sequence[str]:
        """Names of the labels, as torchvision's data sets have them."""
        found = getattr(self._dataset, "classes", ())
        return [str(one) for one in found] if isinstance(found, list | tuple) else ()

    @cached_property
    def columns(self) -> Sequence[Column]:
        """What the first samples have that can be read; a sample may lack some, or have None."""
        self._check_images()
        why: BadSample | None = None
        kinds: dict[str, ColumnKind | None] = {}
        for number in range(min(_PROBED, len(self))):
            try:
                for name, value in self._parts(number).items():
                    kind = None if value is None else self._kind(number, name, value)
                    kinds[name] = "float" if (kinds.get(name), kind) == ("int", "float") else kinds.get(name) or kind
            except BadSample as error:
                why = why or error
        if why is not None and not kinds:
            raise why
        nothing = [name for name, kind in kinds.items() if kind is None]
        if nothing:
            raise UsageError(f"{self._name} has only None in {', '.join(nothing)} of the first {_PROBED} samples")
        return [Column(name=name, kind=kind) for name, kind in kinds.items() if kind is not None]

    def _check_images(self) -> None:
        """Look at images of some samples.

        Raises:
            UsageError: They have no files of their own, and nothing says how to write their pixels.
        """
        if self._images is not None:
            return
        pixels = []
        for place in self._some():
            with suppress(BadSample):
                for one in (one for one in self._parts(place).values() if _is(one, "image")):
                    try:
                        image_payload(one, None)
                    except ValueError:
                        pixels.append(one)
        if pixels:
            raise images_choice(self._name, pixels, len(self))

    def _some(self) -> list[int]:
        """Return the numbers of samples from everywhere."""
        some: list[int] = np.linspace(0, len(self) - 1, min(_PROBED, len(self))).astype(int).tolist()
        return some

    @cached_property
    def _usual_size(self) -> int:
        sizes = []
        for place in self._some():
            with suppress(BadSample):  # which is told when it is converted
                sizes.append(_bytes(self.sample(place)))
        return int(np.mean(sizes or [0]))

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
        more = [name for name in parts if name not in names]
        if more:
            raise BadSample(f"{self.name(number)} has {', '.join(more)}; the first samples have {', '.join(names)}")
        return {column.name: self._value(number, column, parts.get(column.name)) for column in self.columns}

    def _value(self, number: int, column: Column, value: Any) -> Value:
        if value is None:
            return None
        kind = self._kind(number, column.name, value)
        if kind != column.kind and not (kind == "int" and column.kind == "float"):
            raise BadSample(
                f"{self.name(number)}: {column.name} is of kind {kind}, but of kind {column.kind} in the first sample"
            )
        try:
            return kept(value, column, self._images)
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            raise BadSample(f"{self.name(number)}: {column.name}: {error}") from error

    def _kind(self, number: int, name: str, value: Any) -> ColumnKind:
        try:
            return kind_of(value)
        except BadSample as error:
            raise BadSample(f"{self.name(number)}: {name}: {error}") from error

    def _parts(self, number: int) -> dict[str, Any]:
        try:
            sample = self._dataset[number]
        except Exception as error:
            raise BadSample(f"{self.name(number)}: {type(error).__name__}: {error}") from error
        if isinstance(sample, Mapping):
            names = column_names([str(key) for key in sample])
            return {names[str(key)]: value for key, value in sample.items()}
        parts = list(sample) if isinstance(sample, list | tuple) else [sample]
        called = self._wanted or getattr(sample, "_fields", None) or _usual_names(parts)
        if len(called) != len(parts):
            raise BadSample(f"{self.name(number)} has {len(parts)} parts; there are names for {len(called)}")
        return dict(zip(called, parts, strict=True))


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
        if isinstance(found, type) or (not hasattr(found, "__getitem__") and callable(found)):
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
    if isinstance(value, np.datetime64 | np.timedelta64):  # a timedelta64 counts as an integer of NumPy
        return "array"
    for kind, types in _KINDS:
        if isinstance(value, types):
            return kind
    if hasattr(value, "tobytes") and hasattr(value, "getbands"):
        return "image"
    if hasattr(value, "__array__"):
        return _kind_of_array(value)
    raise BadSample(
        f"a sample has a {type(value).__name__}; supported are numbers, text, bytes, images, arrays, tensors, "
        "lists and dicts"
    )


def _kind_of_array(value: Any) -> ColumnKind:
    """Return "int" or "float" of a single number, such as the label that a `TensorDataset` gives."""
    if getattr(value, "shape", None) != ():
        return "array"
    if str(getattr(value, "dtype", "")).startswith(("datetime64", "timedelta64")):
        return "array"
    single = value.item()
    return "array" if isinstance(single, complex) else kind_of(single)


def kept(value: Any, column: Column, images: Written | None = None) -> Value:
    """Return a value as shards keep it.

    Args:
        value: Of the kind of its column.
        column: Where it belongs.
        images: How to write an image that has no file of its own.

    Raises:
        ValueError: It cannot be kept.
    """
    if column.kind == "image":
        return image_payload(value, images)
    if column.is_number:
        return number_of(value, column)
    if column.kind == "text":
        return text_of(value)
    if column.kind == "bytes":
        return Payload(data=bytes(value), suffix="bin")
    return json_of(value) if column.kind == "json" else array_of(value)


def _usual_names(parts: Sequence[Any]) -> list[str]:
    """Return what parts of a tuple are called: a picture ``image``, a number in the second place ``label``."""
    found: list[str] = []
    for place, value in enumerate(parts):
        name = f"part{place}"
        if _is(value, "image") and "image" not in found:
            name = "image"
        elif place == 1 and _is(value, "int"):
            name = "label"
        found.append(name)
    return found


def _is(value: Any, kind: ColumnKind) -> bool:
    try:
        return kind_of(value) == kind
    except BadSample:
        return False


def _bytes(sample: Sample) -> int:
    return sum(len(value.data) if isinstance(value, Payload) else 8 for value in sample.values())
