"""A folder with a folder of pictures for each class, as torchvision's `ImageFolder` reads it; or a table of them."""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.data.model import Column, Payload, Sample
from paceline.data.sources import BadSample
from paceline.errors import UsageError

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # those of torchvision
_IMAGE = Column(name="image", kind="image")
_WHOLE, _DECIMAL = re.compile(r"[-+]?[0-9]+"), re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_PATHS, _LABELS = ("path", "file", "filename", "image"), ("label", "class", "target")


@dataclass(frozen=True)
class Pictures:
    """Files of pictures, each with a label."""

    root: Path
    files: Sequence[str]  # relative to the root
    labels: Sequence[int | float]
    sizes: Sequence[int]  # in bytes; 0 of what is not there
    classes: Sequence[str]
    columns: Sequence[Column] = (_IMAGE, Column(name="label", kind="int"))

    def __len__(self) -> int:
        return len(self.files)

    @property
    def version(self) -> str:
        """The labels."""
        return hashlib.sha256(
            repr((list(self.labels), list(self.classes))).encode("utf-8", "surrogateescape")
        ).hexdigest()

    @property
    def empty_classes(self) -> Sequence[str]:
        """Classes that no picture is of."""
        there = set(self.labels)
        return [name for number, name in enumerate(self.classes) if number not in there]

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
                    sizes.append(_size(path))
    if not files:
        raise UsageError(
            f"no images in {root}: give a folder with one folder of images ({', '.join(SUFFIXES)}) for each class, "
            "or a table (CSV) of paths and labels; text takes --tokenizer"
        )
    return Pictures(root, files, labels, sizes, classes)


def image_table(path: Path) -> Pictures:
    """List the pictures of a CSV file with a column of paths, relative to it, and one of labels, numbers or names.

    Raises:
        UsageError: It has no such columns, no rows, or is no text.
    """
    found = list(_rows(path))
    if not found:
        raise UsageError(f"{path} has no rows")
    labels, classes, column = _numbered([label for _, label in found])
    files = [file for file, _ in found]
    return Pictures(
        path.parent, files, labels, [_size(path.parent / file) for file in files], classes, (_IMAGE, column)
    )


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    """Yield path and label of each row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            heads = rows.fieldnames or []
            files_in, labels_in = _head(path, heads, _PATHS), _head(path, heads, _LABELS)
            for row in rows:
                if not row[files_in] or not row[labels_in]:
                    raise UsageError(
                        f"{path}, line {rows.line_num}: it has no {files_in} or no {labels_in}; fill it in"
                    )
                yield row[files_in], row[labels_in].strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    except csv.Error as error:
        raise UsageError(f"{path} cannot be read as CSV: {error}") from error


def _numbered(labels: Sequence[str]) -> tuple[Sequence[int | float], Sequence[str], Column]:
    """Return labels as numbers: as they are, where all are numbers; else the place of each name in order."""
    if all(_WHOLE.fullmatch(label) for label in labels):
        return [int(label) for label in labels], [], Column(name="label", kind="int")
    if all(_DECIMAL.fullmatch(label) for label in labels):
        return [float(label) for label in labels], [], Column(name="label", kind="float")
    classes = sorted(set(labels))
    number = {name: place for place, name in enumerate(classes)}
    return [number[label] for label in labels], classes, Column(name="label", kind="int")


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none, which is told when it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _head(path: Path, heads: Sequence[str], wanted: Sequence[str]) -> str:
    found = next((head for head in heads if head.strip().lower() in wanted), None)
    if found is None:
        raise UsageError(
            f"{path} has the columns {', '.join(heads) or 'none'}; one must be called {' or '.join(wanted)}"
        )
    return found


def _suffix(suffix: str) -> str:
    plain = suffix.lower().removeprefix(".")
    return "jpg" if plain == "jpeg" else plain
