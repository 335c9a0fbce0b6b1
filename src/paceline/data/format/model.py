"""The model of a data set of shards: a folder of tars, an index beside each, and one file that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

SCHEMA = "paceline.data/1"
CONTENTS_FILE = "dataset.json"
BLOCKS_FILE = "blocks.npy"
KEY = "__key__"  # of what samples are called, as in WebDataset; it is in the index of every shard

ColumnKind = Literal["image", "bytes", "text", "json", "array", "int", "float"]
NUMBERS: frozenset[ColumnKind] = frozenset({"int", "float"})  # kinds whose values are in the index


@dataclass(frozen=True, kw_only=True)
class Column:
    """One of the things that a sample is made of."""

    name: str
    kind: ColumnKind
    optional: bool = False  # whether some samples have none
    mode: str = ""  # of images: what all of them are decoded to, as PIL names it; "each": each has its own

    @property
    def is_number(self) -> bool:
        """Whether the index holds its values."""
        return self.kind in NUMBERS


@dataclass(frozen=True, kw_only=True)
class Payload:
    """Bytes of a sample, as they stand in a shard."""

    data: bytes
    suffix: str  # of a file with such bytes: "jpg"


Value = Payload | int | float | None  # None: the sample has none
Sample = Mapping[str, Value]  # by column


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
        """The name of the file beside it."""
        return index_name(self.file)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What `dataset.json` says."""

    samples: int
    columns: Sequence[Column]
    shards: Sequence[Shard]
    classes: Sequence[str] = ()  # names of the numbers in the column "label", where they have names
    made: Mapping[str, str | int | bool] = field(default_factory=dict)  # of what, by what, and how
    checksum: int = 0  # of all the rest; 0: not known
    schema: str = SCHEMA

    def column(self, name: str) -> Column | None:
        """Return a column by its name; None where there is none."""
        return next((column for column in self.columns if column.name == name), None)


def index_name(shard_file: str) -> str:
    """Return the name of the index beside a shard."""
    return shard_file.removesuffix(".tar") + ".npz"


def shown(name: str) -> str:
    """Return a name of a file as it can be printed: what is not text in it, or breaks lines, as its code."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in name)
