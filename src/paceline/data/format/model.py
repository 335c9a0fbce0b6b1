"""The data classes of a sharded dataset: a folder of tars, an index for each, and one file that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "paceline.data/1"
CONTENTS_FILE = "dataset.json"
BLOCKS_FILE = "blocks.npy"
KEY = "__key__"  # the column of sample names, as in WebDataset; from the index of each shard

ColumnKind = Literal["image", "bytes", "text", "json", "array", "int", "float"]
NUMBERS: frozenset[ColumnKind] = frozenset({"int", "float"})  # kinds whose values are in the index


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a dataset: each sample has a value in it."""

    name: str
    kind: ColumnKind
    optional: bool = False  # whether some samples have no value
    mode: str = ""  # of images: the PIL mode that all are decoded to; "each": the image's own
    palette: str = ""  # of images of mode P: the colours that all have, as hexadecimal RGB; "each": the image's own

    @property
    def notes(self) -> list[str]:
        """A message if ids of a palette do not stand for the same colours in all images; else empty."""
        if self.mode != "P" or self.palette != "each":
            return []
        return [
            f"images of column {self.name} have palettes of their own, so that an id is another colour in each; for "
            "colours, give the Loader image_mode='RGB'"
        ]

    @property
    def is_number(self) -> bool:
        """Whether the column has numbers, whose values are in the index."""
        return self.kind in NUMBERS


@dataclass(frozen=True, kw_only=True)
class Payload:
    """The bytes of a value, as they are stored in a shard."""

    data: bytes
    suffix: str  # of a file with these bytes, such as "jpg"


Value = Payload | int | float | None  # None: the sample has no value
Sample = Mapping[str, Value]  # values by column name


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One tar with its index."""

    file: str
    samples: int
    bytes: int
    crc32: int
    index_bytes: int
    index_crc32: int

    @property
    def index(self) -> str:
        """The file name of the index."""
        return index_name(self.file)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The content of `dataset.json`."""

    samples: int
    columns: Sequence[Column]
    shards: Sequence[Shard]
    classes: Sequence[str] = ()  # names of the numbers in the column "label", if known
    made: Mapping[str, str | int | bool] = field(default_factory=dict)  # source, version and options
    checksum: int = 0  # of the other fields; 0: unknown
    schema: str = SCHEMA

    def column(self, name: str) -> Column | None:
        """Return a column by its name, or None if there is none."""
        return next((column for column in self.columns if column.name == name), None)


def index_name(shard_file: str) -> str:
    """Return the file name of a shard's index."""
    return shard_file.removesuffix(".tar") + ".npz"


def shown(name: str) -> str:
    """Return a file name for printing: characters that cannot be printed, and line breaks, are escaped."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in name)
