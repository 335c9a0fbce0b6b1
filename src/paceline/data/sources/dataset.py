"""Conversion source: a map-style Python dataset, whose values are stored unchanged, tensors as ``.npy``."""

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
_PROBED = 16  # samples that determine columns and sizes


class DatasetSource:
    """A dataset with a name such as ``my_module:train_set``, or the one that a function with such a name returns."""

    version = ""

    def __init__(self, name: str, columns: Sequence[str] = (), images: Written | None = None) -> None:
        """Import the dataset.

        Args:
            name: ``MODULE:NAME``.
            columns: Names of the columns, for samples that are tuples.
            images: The format of images without an original file; None refuses such images.

        Raises:
            UsageError: The name cannot be imported, or is no dataset.
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
        """The names of the labels, from the attribute `classes` as in torchvision, also of the dataset of a `Subset`.

        Of a dataset of Hugging Face, these are the names of its feature `label`. Empty without.
        """
        dataset = self._dataset
        while not hasattr(dataset, "classes") and hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
            dataset = dataset.dataset
        features = getattr(dataset, "features", None)
        label = features.get("label") if isinstance(features, Mapping) else None
        found = getattr(dataset, "classes", getattr(label, "names", ()))
        return [key_text(one) for one in found] if isinstance(found, list | tuple) else ()

    @property
    def notes(self) -> Sequence[str]:
        """A message if a format of images was chosen, and the first samples have no images; else empty."""
        if self._images is None or any(column.kind == "image" for column in self.columns):
            return ()
        return (f"--images {self._images} has no effect: {self._name} returns no PIL images, and arrays stay arrays",)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns of the first samples that can be read. A sample can lack values, or have None."""
        self._check_images()
        why: BadSample | None = None
        kinds: dict[str, ColumnKind | None] = {}
        for number in range(min(_PROBED, len(self))):
            try:
                for name, kind in self._kinds_in(number).items():
                    kinds[name] = "float" if (kinds.get(name), kind) == ("int", "float") else kinds.get(name) or kind
            except BadSample as error:
                why = why or error
        if why is not None and not kinds:
            raise why
        nothing = [name for name, kind in kinds.items() if kind is None]
        if nothing:
            raise UsageError(
                f"{self._name} has only None in {', '.join(nothing)} of the first {_PROBED} samples, which determine "
                "the kinds of columns; put a sample with a value among them, or leave the column out"
            )
        return [Column(name=name, kind=kind) for name, kind in kinds.items() if kind is not None]

    def _kinds_in(self, number: int) -> dict[str, ColumnKind | None]:
        """Return the kind of each value of a sample; None for None."""
        parts = self._parts(number).items()
        return {name: None if value is None else self._kind(number, name, value) for name, value in parts}

    def _check_images(self) -> None:
        """Check that images of some samples can be stored.

        Raises:
            UsageError: Images have no original file, and no format was chosen.
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
        """Return the numbers of some samples, evenly spread over the dataset."""
        some: list[int] = np.linspace(0, len(self) - 1, min(_PROBED, len(self))).astype(int).tolist()
        return some

    @cached_property
    def _usual_size(self) -> int:
        sizes = []
        for place in self._some():
            with suppress(BadSample):  # the conversion reports bad samples
                sizes.append(_bytes(self.sample(place)))
        return int(np.mean(sizes or [0]))

    def size(self, number: int) -> int:
        """Return the mean size of some samples in bytes, as an estimate for each sample."""
        return self._usual_size

    def name(self, number: int) -> str:
        """Return the name of a sample for messages: the name of the dataset and the number."""
        return f"{self._name}[{number}]"

    def sample(self, number: int) -> Sample:
        """Return a sample, with its values as bytes and numbers.

        Raises:
            BadSample: The dataset raises an error, or a value does not fit its column.
        """
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
        if sample is None:
            raise BadSample(f"{self.name(number)} is None, and not a sample")
        if isinstance(sample, Mapping) and self._wanted:
            own = ", ".join(map(key_text, sample))
            raise UsageError(
                f"--columns {','.join(self._wanted)} names the parts of tuples, and {self.name(number)} is a "
                f"{type(sample).__name__} with names of its own ({own}); leave --columns out"
            )
        if isinstance(sample, Mapping):
            names = column_names([key_text(key) for key in sample])
            return {names[key_text(key)]: value for key, value in sample.items()}
        parts = list(sample) if isinstance(sample, list | tuple) else [sample]
        called = self._wanted or getattr(sample, "_fields", None) or _usual_names(parts)
        if len(called) != len(parts):
            raise BadSample(f"{self.name(number)} has {len(parts)} parts; there are names for {len(called)}")
        return dict(zip(called, parts, strict=True))


def loaded(name: str) -> Any:
    """Import a dataset by its name ``MODULE:NAME``; a function or class is called without arguments.

    Raises:
        UsageError: The name cannot be imported, or is no dataset.
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


def key_text(key: Any) -> str:
    """Return a key of a dict, or the name of a class, as text. Of an enum that is a `str`, this is its value."""
    return str.__str__(key) if isinstance(key, str) else str(key)


def kind_of(value: Any) -> ColumnKind:
    """Return the column kind for a Python value.

    Raises:
        BadSample: Values of this type are not supported.
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
    """Return "int" or "float" for an array with a single number, such as a label of a `TensorDataset`, else "array"."""
    if getattr(value, "shape", None) != ():
        return "array"
    if str(getattr(value, "dtype", "")).startswith(("datetime64", "timedelta64")):
        return "array"
    single = value.item()
    return "array" if isinstance(single, complex) else kind_of(single)


def kept(value: Any, column: Column, images: Written | None = None) -> Value:
    """Return a value in the form that shards store.

    Args:
        value: The value, of the kind of its column.
        column: Its column.
        images: The format of images without an original file.

    Raises:
        ValueError: The value cannot be stored.
    """
    if column.kind == "image":
        return image_payload(value, images)
    if column.is_number:
        return number_of(value, column)
    if column.kind == "text":
        return text_of(value)
    if column.kind == "bytes":
        return Payload(data=memoryview(value).tobytes(), suffix="bin")  # `bytes` would call a method of a subclass
    return json_of(value) if column.kind == "json" else array_of(value)


def _usual_names(parts: Sequence[Any]) -> list[str]:
    """Return names for the parts of a tuple: the first image is ``image``, an integer in second place ``label``."""
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
