"""How does text become files of tokens, and are they still what was written? One file after the other, each whole.

What is done is noted with each file: a conversion that was interrupted reads past the documents it has, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.data.shards import crc32_of
from paceline.data.tokens import CONTENTS_FILE, TokenContents, Tokenizer, TokenShard, read_tokens
from paceline.data.verify import Verified
from paceline.errors import EnvironmentFault, UsageError

SHARD_TOKENS = 1 << 26  # 128 MB of two bytes each
PLAN_FILE = ".converting.json"


@dataclass(frozen=True, kw_only=True)
class _Done:
    """How far a conversion is."""

    mark: str  # of what is converted, and by what
    documents: int = 0
    shards: Sequence[TokenShard] = ()


def write_tokens(
    folder: Path,
    texts: Iterator[Sequence[str]],
    tokenizer: Tokenizer,
    shard_tokens: int = SHARD_TOKENS,
    mark: str = "",
) -> TokenContents:
    """Write the tokens of texts; a folder that is not finished has no `tokens.json`.

    Args:
        folder: New, empty, or that of the same conversion, interrupted.
        texts: Documents, some at a time.
        tokenizer: Makes ids of them.
        shard_tokens: Of a file, about: documents are not parted.
        mark: The same for the same texts and tokenizer, and no other.

    Raises:
        UsageError: There is something already, or there are no texts.
        EnvironmentFault: It cannot be written.
    """
    done = begun = _begun(folder, mark)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for done in _worked(folder, begun, texts, tokenizer, shard_tokens):
            _note(folder / PLAN_FILE, done)
        if not done.shards:
            raise UsageError("there is no text to convert")
        contents = TokenContents(
            tokens=sum(shard.tokens for shard in done.shards),
            documents=done.documents,
            vocabulary=tokenizer.vocabulary,
            end=tokenizer.end,
            dtype=str(_dtype(tokenizer)),
            tokenizer=tokenizer.name,
            shards=done.shards,
        )
        _note(folder / CONTENTS_FILE, contents)
        (folder / PLAN_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror or error}; name another folder") from error
    return contents


def verify_tokens(folder: Path, progress: Callable[[int, int], None]) -> Verified:
    """Hold every file of tokens against its checksum; documents are not told apart, so it counts tokens."""
    contents = read_tokens(folder)
    good = read = 0
    problems: list[str] = []
    for number, shard in enumerate(contents.shards, 1):
        path = folder / shard.file
        try:
            if crc32_of(path) == shard.crc32:
                good, read = good + shard.tokens, read + path.stat().st_size
            else:
                problems.append(f"{path} is damaged: its checksum does not match")
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror or error}")
        progress(number, len(contents.shards))
    return Verified(samples=good, bytes=read, problems=tuple(problems))


def _begun(folder: Path, mark: str) -> _Done:
    """Return how far the conversion is; refuse a folder that holds something else."""
    plan = folder / PLAN_FILE
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return _Done(mark=mark)
    if not plan.is_file():
        raise UsageError(f"{folder} exists and is not empty; name a new folder")
    try:
        found = msgspec.json.decode(plan.read_bytes(), type=_Done)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{plan} cannot be read: {error}; remove {folder}, or name another folder") from error
    if found.mark != mark:
        raise UsageError(
            f"{folder} holds an unfinished conversion of another text, or with another tokenizer; "
            "remove it, or name another folder"
        )
    return found


def _worked(
    folder: Path, done: _Done, texts: Iterator[Sequence[str]], tokenizer: Tokenizer, shard_tokens: int
) -> Iterator[_Done]:
    """Yield how far it is, at the beginning and after each file."""
    yield done
    held: list[NDArray[Any]] = []
    documents, there, dtype = 0, done.documents, _dtype(tokenizer)
    for some in texts:
        documents += len(some)
        if documents <= there:
            continue
        held += [np.append(np.asarray(ids), tokenizer.end).astype(dtype) for ids in tokenizer.ids(some)]
        if sum(map(len, held)) >= shard_tokens:
            done = _more(folder, done, documents, held)
            yield done
            held = []
    if held:
        yield _more(folder, done, documents, held)


def _more(folder: Path, done: _Done, documents: int, held: Sequence[NDArray[Any]]) -> _Done:
    path = folder / f"tokens-{len(done.shards):06d}.npy"
    made = path.with_name(f".{path.name}.part")
    tokens = np.concatenate(held)
    with made.open("wb") as file:
        np.save(file, tokens)
    os.replace(made, path)
    shard = TokenShard(file=path.name, tokens=len(tokens), crc32=crc32_of(path))
    return replace(done, documents=documents, shards=(*done.shards, shard))


def _note(path: Path, what: _Done | TokenContents) -> None:
    made = path.with_name(f".{path.name}.part")
    made.write_bytes(msgspec.json.format(msgspec.json.encode(what), indent=1))
    os.replace(made, path)


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
