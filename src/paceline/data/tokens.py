"""Text as token ids: one long row of numbers in NumPy files, of which samples are windows, taken a batch at a time.

A sample of length n is n + 1 tokens: what the model sees, and each one's successor. Windows follow each other and share
the one token between them. Documents follow each other, with an end mark behind each.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.folders import is_url
from paceline.data.index import UNREADABLE, DamagedData

SCHEMA = "paceline.tokens/1"
CONTENTS_FILE = "tokens.json"

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TokenShard:
    """One file of tokens."""

    file: str
    tokens: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class TokenContents:
    """What `tokens.json` says."""

    tokens: int
    documents: int
    vocabulary: int  # ids are below
    end: int  # the id behind each document
    dtype: str  # of the files
    tokenizer: str
    shards: Sequence[TokenShard]
    schema: str = SCHEMA


class Text(NamedTuple):
    """A document, or a piece of one."""

    text: str
    ends: bool = True  # whether the document ends with it


class Tokenizer(Protocol):
    """Makes ids of text."""

    name: str
    vocabulary: int
    end: int
    cuts: bool  # whether lines have the same ids by themselves as in their document

    def ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the ids of each text."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token; 256 ends a document."""

    name, vocabulary, end, cuts = "bytes", 257, 256, True

    def ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the bytes of each text."""
        return (np.frombuffer(text.encode(), np.uint8) for text in texts)  # type: ignore[misc]


class TokenDataset:
    """Windows of a row of tokens. Reading is safe from several threads."""

    def __init__(self, folder: str | os.PathLike[str], length: int, dtype: str | None = "int64") -> None:
        """Open a folder that `paceline data convert` wrote from text.

        Args:
            folder: It.
            length: Of a sample, in tokens; it has one more, the last one's successor.
            dtype: Of samples; None: as they are stored, two bytes a token where that is enough.

        Raises:
            UsageError: There is none, or it is shorter than a sample.
            DamagedData: It cannot be read.
        """
        if is_url(folder):
            raise UsageError(
                f"{folder} is in a store, and tokens are read from local folders only; copy it to a folder"
            )
        self.folder, self.length, self._dtype = Path(folder), length, dtype
        self.contents = read_tokens(self.folder)
        if length < 1 or not len(self):
            raise UsageError(f"{folder} has {self.contents.tokens:,} tokens, too few for one sample of {length:,}")

    def __len__(self) -> int:
        return int(self._first[-1])

    def __reduce__(self) -> tuple[type[TokenDataset], tuple[Path, int, str | None]]:
        return type(self), (self.folder, self.length, self._dtype)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one sample, of shape [length + 1]."""
        row: NDArray[Any] = self.batch(np.array([number]))[0]
        return row

    def batch(self, ids: Numbers) -> NDArray[Any]:
        """Return samples, of shape [samples, length + 1]."""
        if len(self._windows) == 1:
            found = self._windows[0][ids]
            return found if self._dtype is None else found.astype(self._dtype, copy=False)
        shards = np.searchsorted(self._first, ids, side="right") - 1
        made = np.empty((len(ids), self.length + 1), self._dtype or self.contents.dtype)
        for shard in np.unique(shards).tolist():
            own = shards == shard
            made[own] = self._windows[shard][ids[own] - self._first[shard]]
        return made

    @cached_property
    def _first(self) -> Numbers:
        """The number of each shard's first sample, and of all."""
        counts = [max(0, (shard.tokens - 1) // self.length) for shard in self.contents.shards]
        return np.append(0, np.cumsum(counts)).astype(np.int64)

    @cached_property
    def _windows(self) -> list[NDArray[Any]]:
        """All samples of each shard, as views of its file."""
        found = []
        for shard, count in zip(self.contents.shards, np.diff(self._first).tolist(), strict=True):
            tokens = _mapped(self.folder / shard.file, shard, self.contents.dtype)
            step = tokens.strides[0]
            found.append(as_strided(tokens, (count, self.length + 1), (self.length * step, step), writeable=False))
        return found


def read_tokens(folder: Path) -> TokenContents:
    """Read what a folder of tokens says of itself.

    Raises:
        UsageError: There are none.
        DamagedData: It cannot be read.
    """
    path = folder / CONTENTS_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=TokenContents)
    except FileNotFoundError as error:
        raise UsageError(
            f"no {CONTENTS_FILE} in {folder}; `paceline data convert text.txt {folder}` makes one"
        ) from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedData(f"{path} cannot be read: {error}") from error
    if found.schema != SCHEMA:
        raise DamagedData(f"{path} has schema {found.schema!r}, and this version reads {SCHEMA!r}")
    return found


def _mapped(path: Path, shard: TokenShard, dtype: str) -> NDArray[Any]:
    try:
        tokens: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise DamagedData(f"{path} cannot be read ({error}); convert the text again") from error
    if tokens.shape != (shard.tokens,) or tokens.dtype != dtype:
        raise DamagedData(f"{path} has {tokens.shape} of {tokens.dtype}, but {shard.tokens:,} of {dtype} were written")
    return np.asarray(tokens)
