"""Documents: a text file, each file of a folder, or each line of JSON with a field ``text``; and their tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.data.tokens import ByteTokenizer, Tokenizer
from paceline.errors import EnvironmentFault, UsageError

SUFFIXES = (".txt", ".md", ".jsonl")
_TOGETHER_BYTES = 1 << 24  # of documents that are made into tokens together


def documents(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[list[str]]:
    """Yield documents, some at a time.

    Args:
        path: A file of text, or a folder of such files.
        progress: Called with the bytes that are read, and those of all files.

    Raises:
        UsageError: There are none, or one is no text.
    """
    held: list[str] = []
    size = 0
    done, total = 0, sum(file.stat().st_size for file in _files(path))
    for text in (text for file in _files(path) for text in _of_file(file)):
        held.append(text)
        size += len(text)
        done += len(text)  # less than the bytes of the file in JSON and beyond ASCII
        if size >= _TOGETHER_BYTES:
            yield held
            held, size = [], 0
            progress(min(done, total), total)
    if held:
        yield held


def fingerprint(path: Path, tokenizer: str) -> str:
    """Return a digest of the files of documents, by name and size, and of the tokenizer, by what it is."""
    digest = hashlib.sha256(Path(tokenizer).read_bytes() if tokenizer != "bytes" else b"bytes")
    for file in _files(path):
        digest.update(f"{file}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)


def _of_file(path: Path) -> Iterator[str]:
    try:
        if path.suffix.lower() != ".jsonl":
            yield path.read_text(encoding="utf-8")
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _of_line(path, number, line)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _of_line(path: Path, number: int, line: bytes) -> str:
    try:
        found = msgspec.json.decode(line)
        text: Any = found["text"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise UsageError(f'{path}, line {number}: not JSON with a field "text"') from error
    return str(text)


class FileTokenizer:
    """A ``tokenizer.json``, as Hugging Face's tokenizers have it."""

    def __init__(self, path: Path) -> None:
        """Read one.

        Raises:
            EnvironmentFault: The package tokenizers is not installed.
            UsageError: The file is no tokenizer, or has no end of text.
        """
        try:
            from tokenizers import Tokenizer as Own
        except ImportError as error:
            raise EnvironmentFault("a tokenizer.json needs tokenizers: pip install 'paceline[text]'") from error
        try:
            self._own = Own.from_file(str(path))
        except Exception as error:
            raise UsageError(f"{path} is not a tokenizer: {error}") from error
        ends = [self._own.token_to_id(name) for name in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")]
        found = next((end for end in ends if end is not None), None)
        if found is None:
            raise UsageError(f"{path} has no end-of-text token; add one, such as <|endoftext|>")
        self.name, self.vocabulary, self.end = path.name, int(self._own.get_vocab_size()), int(found)

    def ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the ids of each text, without marks of its beginning and end."""
        return (one.ids for one in self._own.encode_batch(list(texts), add_special_tokens=False))


def tokenizer_of(name: str) -> Tokenizer:
    """Return a tokenizer: ``bytes``, or that of a file.

    Raises:
        UsageError: There is no such file.
    """
    if name == "bytes":
        return ByteTokenizer()
    if not Path(name).is_file():
        raise UsageError(f"--tokenizer {name}: give 'bytes', or the path of a tokenizer.json")
    return FileTokenizer(Path(name))
