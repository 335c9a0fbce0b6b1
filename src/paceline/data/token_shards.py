"""How does text become files of tokens, and are they still what was written? One file after the other, each whole.

What is done is noted with each file: a conversion that was interrupted reads past the documents it has, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import replace_bytes, replacing
from paceline.data.resuming import LOCK_FILE, alone_in, clear
from paceline.data.shards import crc32_of
from paceline.data.tokens import CONTENTS_FILE, Text, TokenContents, Tokenizer, TokenShard, read_tokens
from paceline.data.verify import Verified

SHARD_TOKENS = 1 << 26  # 128 MB of two bytes each
PLAN_FILE = ".converting.json"


@dataclass(frozen=True, kw_only=True)
class _Done:
    """How far a conversion is."""

    mark: str  # of what is converted, and by what
    documents: int = 0
    pieces: Sequence[int] = ()  # of documents, that were made into tokens at the end of each file
    ended: Sequence[int] = ()  # the documents that had ended by then
    shards: Sequence[TokenShard] = ()


def write_tokens(
    folder: Path,
    texts: Iterator[Sequence[Text]],
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
    _begun(folder, mark)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder):
            return _written(folder, _sound(folder, _begun(folder, mark)), texts, tokenizer, shard_tokens)
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror or error}; name another folder") from error


def _written(
    folder: Path, begun: _Done, texts: Iterator[Sequence[Text]], tokenizer: Tokenizer, shard_tokens: int
) -> TokenContents:
    done = begun
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
    clear(folder)
    _note(folder / CONTENTS_FILE, contents)
    (folder / PLAN_FILE).unlink(missing_ok=True)
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
    if not folder.exists():
        return _Done(mark=mark)
    if folder.is_dir() and not any(
        path.name != LOCK_FILE and not path.name.endswith(".part") for path in folder.iterdir()
    ):
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


def _sound(folder: Path, done: _Done) -> _Done:
    """Return how far a conversion is whose files are those that were written, up to the first that is not."""
    good = 0
    for shard in done.shards:
        path = folder / shard.file
        if not path.is_file() or crc32_of(path) != shard.crc32:
            break
        good += 1
    return replace(
        done,
        shards=done.shards[:good],
        pieces=done.pieces[:good],
        ended=done.ended[:good],
        documents=done.ended[good - 1] if good else 0,
    )


def _worked(
    folder: Path, done: _Done, texts: Iterator[Sequence[Text]], tokenizer: Tokenizer, shard_tokens: int
) -> Iterator[_Done]:
    """Yield how far it is, at the beginning and after each file."""
    yield done
    held: list[NDArray[Any]] = []
    pieces, size, documents, there = 0, 0, 0, done.pieces[-1] if done.pieces else 0
    for some in texts:
        pieces += len(some)
        documents += sum(one.ends for one in some)
        if pieces <= there:
            continue
        held += _tokens(some, tokenizer)
        size += sum(map(len, held[-len(some) :]))
        if size >= shard_tokens:
            done = _more(folder, done, (pieces, documents), held)
            yield done
            held, size = [], 0
    if held:
        yield _more(folder, done, (pieces, documents), held)


def _tokens(some: Sequence[Text], tokenizer: Tokenizer) -> list[NDArray[Any]]:
    """Return the tokens of each text, with the mark of its end."""
    made = []
    for one, ids in zip(some, tokenizer.ids([one.text for one in some]), strict=True):
        tokens = np.empty(len(ids) + one.ends, _dtype(tokenizer))
        tokens[: len(ids)] = ids
        tokens[len(ids) :] = tokenizer.end
        made.append(tokens)
    return made


def _more(folder: Path, done: _Done, far: tuple[int, int], held: Sequence[NDArray[Any]]) -> _Done:
    path = folder / f"tokens-{len(done.shards):06d}.npy"
    tokens = np.concatenate(held)
    with replacing(path) as made:
        with made.open("wb") as file:
            np.save(file, tokens)
        crc32 = crc32_of(made)
    shard = TokenShard(file=path.name, tokens=len(tokens), crc32=crc32)
    return replace(
        done,
        documents=far[1],
        pieces=(*done.pieces, far[0]),
        ended=(*done.ended, far[1]),
        shards=(*done.shards, shard),
    )


def _note(path: Path, what: _Done | TokenContents) -> None:
    replace_bytes(path, msgspec.json.format(msgspec.json.encode(what), indent=1))


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
