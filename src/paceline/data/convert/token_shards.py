"""Conversion of text to files of tokens, and their verification. A crash leaves no partial file.

The progress is noted with each file. A resumed conversion skips the documents whose tokens are already written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import replacing, write_durably
from paceline.data.convert.resuming import alone_in, clear, note_path
from paceline.data.convert.shard_writer import crc32_of
from paceline.data.convert.skipped_samples import write_skipped
from paceline.data.convert.verify import Verified
from paceline.data.format.tokens import CONTENTS_FILE, Text, TokenContents, Tokenizer, TokenShard, read_tokens

SHARD_TOKENS = 1 << 26  # 128 MiB with two bytes per token


@dataclass(frozen=True, kw_only=True)
class _Done:
    """The progress of a conversion."""

    documents: int = 0
    pieces: int = 0  # the number of pieces of documents that were converted
    shards: Sequence[TokenShard] = ()


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """The note of a finished file, with the progress of the conversion at that time."""

    shard: TokenShard
    documents: int
    pieces: int


def write_tokens(
    folder: Path,
    texts: Iterator[Sequence[Text]],
    tokenizer: Tokenizer,
    shard_tokens: int = SHARD_TOKENS,
    mark: str | Callable[[], str] = "tokens",
    skipped: Sequence[str] = (),
) -> TokenContents:
    """Convert texts to files of tokens. The file `tokens.json`, written last, makes the folder a dataset.

    Args:
        folder: A new or empty folder, or the folder of the same interrupted conversion.
        texts: Yields documents or pieces of documents, several at a time.
        tokenizer: Converts text to ids.
        shard_tokens: The approximate number of tokens in a file.
        mark: The identity of texts and tokenizer, or a function that returns it, which is called again at the end to
            notice texts that changed meanwhile.
        skipped: The texts that cannot be read, with the reasons; complete once `texts` is exhausted. The file
            `skipped.txt` lists them.

    Returns:
        The description of the dataset.

    Raises:
        UsageError: The folder has other content, there are no texts, or they changed meanwhile.
        EnvironmentFault: The folder cannot be written.
    """
    begun_with = mark if isinstance(mark, str) else mark()
    try:
        with alone_in(folder, f"{begun_with} {shard_tokens}", CONTENTS_FILE):
            contents = _complete(folder)
            if contents is None:
                contents = _written(folder, texts, tokenizer, shard_tokens)
                if not isinstance(mark, str) and mark() != begun_with:
                    raise UsageError(
                        f"the text changed while it was converted; remove {folder}, and convert again when nothing "
                        "writes to the text"
                    )
                write_skipped(folder, skipped)
                write_durably(folder / CONTENTS_FILE, _json(contents))
            clear(folder)
            return contents
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {folder}: {error.strerror or error}; name another folder") from error


def _complete(folder: Path) -> TokenContents | None:
    """Return the result of a conversion that was killed after its last file was written, if its files are intact."""
    if not (folder / CONTENTS_FILE).exists():
        return None
    contents = read_tokens(folder)
    return contents if all(_is_as_written(folder, shard) for shard in contents.shards) else None


def _written(folder: Path, texts: Iterator[Sequence[Text]], tokenizer: Tokenizer, shard_tokens: int) -> TokenContents:
    done = begun = _resumed(folder)
    for done in _worked(folder, begun, texts, tokenizer, shard_tokens):
        note = _Note(shard=done.shards[-1], documents=done.documents, pieces=done.pieces)
        write_durably(note_path(folder / note.shard.file), _json(note))
    if not done.shards:
        raise UsageError("there is no text to convert")
    return TokenContents(
        tokens=sum(shard.tokens for shard in done.shards),
        documents=done.documents,
        vocabulary=tokenizer.vocabulary,
        end=tokenizer.end,
        dtype=str(_dtype(tokenizer)),
        tokenizer=tokenizer.name,
        shards=done.shards,
    )


def verify_tokens(folder: Path, progress: Callable[[int, int], None]) -> Verified:
    """Compare every file of tokens with its checksum; the result counts tokens as samples.

    Args:
        folder: The folder.
        progress: Is called with the number of verified files and of all files.
    """
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


def _resumed(folder: Path) -> _Done:
    """Return the progress of an interrupted conversion, up to the first file that does not match its checksum."""
    done = _Done()
    while True:
        try:
            note = msgspec.json.decode(note_path(_file(folder, done)).read_bytes(), type=_Note)
        except (OSError, msgspec.DecodeError):
            return done
        if not _is_as_written(folder, note.shard):
            return done
        done = _Done(documents=note.documents, pieces=note.pieces, shards=(*done.shards, note.shard))


def _is_as_written(folder: Path, shard: TokenShard) -> bool:
    path = folder / shard.file
    return path.is_file() and crc32_of(path) == shard.crc32


def _worked(
    folder: Path, done: _Done, texts: Iterator[Sequence[Text]], tokenizer: Tokenizer, shard_tokens: int
) -> Iterator[_Done]:
    """Write files of tokens, and yield the progress after each file."""
    held: list[NDArray[Any]] = []
    pieces, size, documents, there = 0, 0, 0, done.pieces
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
    """Return the tokens of each text, with the end token if the document ends."""
    made = []
    for one, ids in zip(some, tokenizer.ids([one.text for one in some]), strict=True):
        tokens = np.empty(len(ids) + one.ends, _dtype(tokenizer))
        tokens[: len(ids)] = ids
        tokens[len(ids) :] = tokenizer.end
        made.append(tokens)
    return made


def _more(folder: Path, done: _Done, far: tuple[int, int], held: Sequence[NDArray[Any]]) -> _Done:
    path = _file(folder, done)
    tokens = np.concatenate(held)
    with replacing(path) as part:
        with part.open("wb") as file:
            np.save(file, tokens)
            file.flush()
            os.fsync(file.fileno())
        crc32 = crc32_of(part)
    shard = TokenShard(file=path.name, tokens=len(tokens), crc32=crc32)
    return _Done(documents=far[1], pieces=far[0], shards=(*done.shards, shard))


def _file(folder: Path, done: _Done) -> Path:
    """Return the path of the next file of tokens to write."""
    return folder / f"tokens-{len(done.shards):06d}.npy"


def _json(what: _Note | TokenContents) -> bytes:
    return msgspec.json.format(msgspec.json.encode(what), indent=1)


def _dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocabulary <= 1 << 16 else np.uint32)
