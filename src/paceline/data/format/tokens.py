"""Files of token ids: one-dimensional NumPy arrays, and a `tokens.json` that describes them.

Documents follow each other, and each ends with an end token.
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
    """One file of token ids."""

    file: str
    tokens: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class TokenContents:
    """The content of `tokens.json`."""

    tokens: int
    documents: int
    vocabulary: int  # the number of ids; all ids are smaller
    end: int  # the id that ends each document
    dtype: str  # of the files
    tokenizer: str
    shards: Sequence[TokenShard]
    schema: str = SCHEMA


class Text(NamedTuple):
    """The text of a document, or a part of it."""

    text: str
    ends: bool = True  # whether this is the last part of the document


class Tokenizer(Protocol):
    """Converts text to token ids."""

    name: str
    vocabulary: int
    end: int
    cuts: bool  # whether single lines get the same ids as in their document
    note: str  # a message for the user before the conversion, or ""

    def ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the ids of each text."""


class ByteTokenizer:
    """Each byte of UTF-8 is a token; 256 ends a document."""

    name, vocabulary, end, cuts, note = "bytes", 257, 256, True, ""

    def ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the bytes of each text."""
        return (np.frombuffer(text.encode(), np.uint8) for text in texts)  # type: ignore[misc]


def read_tokens(folder: Path) -> TokenContents:
    """Read the description of a folder of tokens.

    Raises:
        UsageError: The folder has no tokens.
        DamagedData: The description cannot be read, or has another schema.
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
