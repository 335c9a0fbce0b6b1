"""A folder with a folder of pictures for each class, as torchvision's `ImageFolder` reads it; or a table of them."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.data.model import Column, Payload, Sample
from paceline.data.sources import BadSample
from paceline.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # those of torchvision
_PATHS, _LABELS = ("path", "file", "filename", "image"), ("label", "class", "target")


@dataclass(frozen=True)
class Pictures:
    """Files of pictures, each with a label."""

    root: Path
    files: Sequence[str]  # relative to the root
    labels: Sequence[int]
    sizes: Sequence[int]  # in bytes
    classes: Sequence[str]
    columns: Sequence[Column] = (Column(name="image", kind="image"), Column(name="label", kind="int"))

    def __len__(self) -> int:
        return len(self.files)

    @property
    def version(self) -> str:
        """The labels."""
        return hashlib.sha256(
            repr((list(self.labels), list(self.classes))).encode("utf-8", "surrogateescape")
        ).hexdigest()

    def size(self, number: int) -> int:
        """Return the bytes of a file."""
        return self.sizes[number]

    def name(self, number: int) -> str:
        """Return the path below the root."""
        return self.files[number]

    def sample(self, number: int) -> Sample:
        """Read a file as it is."""
        path = self.root / self.files[number]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadSample(f"{path} cannot be read: {error.strerror or error}") from error
        if not data:
            raise BadSample(f"{path} is empty")
        return {"image": Payload(data=data, suffix=_suffix(path.suffix)), "label": self.labels[number]}


def image_folder(root: Path) -> Pictures:
    """List the pictures below the folders of a folder; their names in order are the classes.

    Raises:
        UsageError: There are no folders, or no pictures in them.
    """
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    files, labels, sizes = [], [], []
    for label, name in enumerate(classes):
        for folder, inner, names in os.walk(root / name, followlinks=True):
            inner.sort()
            for file in sorted(names):
                if file.lower().endswith(SUFFIXES):
                    path = Path(folder) / file
                    files.append(str(path.relative_to(root)))
                    labels.append(label)
                    sizes.append(path.stat().st_size)
    if not files:
        raise UsageError(
            f"no pictures in {root}: give a folder with a folder of pictures ({', '.join(SUFFIXES)}) for each class, "
            "or a table (CSV) of paths and labels"
        )
    return Pictures(root, files, labels, sizes, classes)


def image_table(path: Path) -> Pictures:
    """List the pictures of a CSV file with a column of paths, relative to it, and one of labels, numbers or names.

    Raises:
        UsageError: It has no such columns, no rows, or a file of it is not there.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        heads = rows.fieldnames or []
        files_in, labels_in = _head(path, heads, _PATHS), _head(path, heads, _LABELS)
        found = [(row[files_in], row[labels_in]) for row in rows]
    if not found:
        raise UsageError(f"{path} has no rows")
    names = {label for _, label in found}
    numbered = all(label.isdecimal() for label in names)
    classes = [] if numbered else sorted(names)
    number = {name: int(name) if numbered else classes.index(name) for name in names}
    root = path.parent
    try:
        sizes = [(root / file).stat().st_size for file, _ in found]
    except OSError as error:
        raise UsageError(f"{path} names {error.filename}, which cannot be read: {error.strerror}") from error
    return Pictures(root, [file for file, _ in found], [number[label] for _, label in found], sizes, classes)


def _head(path: Path, heads: Sequence[str], wanted: Sequence[str]) -> str:
    found = next((head for head in heads if head.strip().lower() in wanted), None)
    if found is None:
        raise UsageError(
            f"{path} has the columns {', '.join(heads) or 'none'}; one has to be called {' or '.join(wanted)}"
        )
    return found


def _suffix(suffix: str) -> str:
    plain = suffix.lower().removeprefix(".")
    return "jpg" if plain == "jpeg" else plain
