"""Files of token ids: one-dimensional NumPy arrays, and a `tokens.json` that describes them.

Documents follow each other, each with an end token behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from paceline.core.errors import UsageError
from paceline.data.format.index import DamagedData

SCHEMA = "paceline.tokens/1"
CONTENTS_FILE = "tokens.json"


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
