"""Conversion source: a COCO file, which describes images with any number of objects in JSON."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import column_names, json_of
from paceline.data.format.model import Column, Sample
from paceline.data.sources import BadSample
from paceline.data.sources.files import Files, file_column, size_of

_LISTS = ("images", "annotations", "categories")
_FOLDERS = (".", "images", "..", "../images")  # searched for images, relative to the JSON file


class Coco:
    """The images of a COCO file.

    Each sample has the column `objects`: the list of annotations of the image, unchanged except for the added key
    `label`, the index of the category in `classes`. The column `fields` has the other entries of the image in the file.
    """

    def __init__(self, path: Path) -> None:
        """Read the JSON file, and find the folder of its images.

        Args:
            path: A JSON file with the lists `images`, `annotations` and `categories`.

        Raises:
            UsageError: The file is no COCO file, an annotation has no image or category, or the images are not found.
        """
        self._path = path
        self._told = _read(path)
        self._images: list[dict[str, Any]] = self._told["images"]
        categories = sorted(self._told["categories"], key=lambda one: int(one["id"]))
        self.classes: Sequence[str] = [str(one["name"]) for one in categories]
        labels = {one["id"]: place for place, one in enumerate(categories)}
        self._objects = _by_image(path, self._told, labels)
        names = [str(one["file_name"]) for one in self._images]
        root = _root(path, self._told["images"])
        self._files = Files(root, names, [size_of(root / name) for name in names], [file_column(names)], {})

    def __reduce__(self) -> tuple[type[Coco], tuple[Path]]:
        return type(self), (self._path,)

    def __len__(self) -> int:
        return len(self._images)

    @property
    def version(self) -> str:
        """A fingerprint that changes if the JSON file or the modification time of an image changes."""
        return f"{self._files.version} {hashlib.sha256(self._path.read_bytes()).hexdigest()}"

    @property
    def notes(self) -> Sequence[str]:
        """Messages about what is not converted: other parts of the file, and other fields of the categories."""
        parts = [name for name in self._told if name not in _LISTS]
        parts += sorted(
            {f"categories.{name}" for one in self._told["categories"] for name in one if name not in _NAMED}
        )
        return [f"parts of {self._path} that are not converted: {', '.join(parts)}"] if parts else []

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns: the image, `objects`, and `fields`."""
        own = self._files.columns[0]
        column_names([own.name, "objects", "fields"])
        return [own, Column(name="objects", kind="json"), Column(name="fields", kind="json")]

    def size(self, number: int) -> int:
        """Return the number of bytes of an image."""
        return self._files.size(number)

    def name(self, number: int) -> str:
        """Return the path of an image."""
        return self._files.name(number)

    def sample(self, number: int) -> Sample:
        """Read an image with its objects.

        Raises:
            BadSample: The image cannot be read, or its objects cannot be stored as JSON.
        """
        image = self._images[number]
        try:
            described = {"objects": json_of(self._objects[image["id"]]), "fields": json_of(image)}
        except ValueError as error:
            raise BadSample(f"{self.name(number)}: {error}") from error
        return {**self._files.sample(number), **described}


_NAMED = ("id", "name")


def _read(path: Path) -> dict[str, Any]:
    try:
        told = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} cannot be read as a COCO file: {error}; text in JSON takes --tokenizer") from error
    missing = [name for name in _LISTS if not isinstance(told, Mapping) or not isinstance(told.get(name), list)]
    if missing:
        raise UsageError(
            f"{path} is not a COCO file: it has no list {', '.join(missing)}; text in JSON takes --tokenizer"
        )
    for name, needed in (("images", {"id", "file_name"}), ("categories", set(_NAMED))):
        bad = [one for one in told[name] if not isinstance(one, Mapping) or not needed <= set(one)]
        ids = [one["id"] for one in told[name]] if not bad else []
        if bad or len(set(ids)) < len(ids):
            said = f"{str(bad[0])[:80]} lacks {' or '.join(sorted(needed))}" if bad else "an id is there twice"
            raise UsageError(f"{path}, {name}: {said}; repair the file")
    for one in told["categories"]:
        if not re.fullmatch("-?[0-9]+", str(one["id"])):
            raise UsageError(
                f"{path}: category {one['name']} has id {one['id']!r}; give whole numbers, which order the classes"
            )
    return dict(told)


def _by_image(path: Path, told: Mapping[str, Any], labels: Mapping[Any, int]) -> dict[Any, list[dict[str, Any]]]:
    """Return the annotations of each image, with their labels.

    Raises:
        UsageError: An annotation has no image, no category, or already a field `label`.
    """
    found: dict[Any, list[dict[str, Any]]] = {one["id"]: [] for one in told["images"]}
    for one in told["annotations"]:
        for name, there in (("image_id", found), ("category_id", labels)):
            if one.get(name) not in there:
                raise UsageError(f"{path}: annotation {one.get('id')} has {name} {one.get(name)}, which is not there")
        if "label" in one:
            raise UsageError(f"{path}: annotation {one.get('id')} has a field label; rename it, since label is added")
        found[one["image_id"]].append({**one, "label": labels[one["category_id"]]})
    return found


def _root(path: Path, images: Sequence[Mapping[str, Any]]) -> Path:
    """Return the folder that contains most of the images, among some folders near the JSON file.

    Raises:
        UsageError: No image is found.
    """
    if not images:
        raise UsageError(f"{path} has no images")
    named = [
        path.parent / path.stem.removeprefix("instances_"),
        path.parent.parent / path.stem.removeprefix("instances_"),
    ]
    folders = [*(path.parent / one for one in _FOLDERS), *named]
    some = [str(one["file_name"]) for one in images[:: max(1, len(images) // 64)]]
    count, root = max(((sum((f / name).is_file() for name in some), f) for f in folders), key=lambda one: one[0])
    if not count:
        told = ", ".join(str(folder) for folder in folders)
        raise UsageError(
            f"{path}: the image {some[0]} is in none of the folders {told}; move the JSON file to the images"
        )
    return root
