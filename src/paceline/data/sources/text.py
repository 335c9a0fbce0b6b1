"""Documents, a piece at a time: text files, JSON lines and Parquet files; and their tokens."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.tokens import ByteTokenizer, Text, Tokenizer
from paceline.data.sources.files import files_below, left_out_notes

PLAIN, LINES, TABLES = (".txt", ".md"), (".jsonl", ".ndjson"), (".parquet", ".pq")
SUFFIXES = (*PLAIN, *LINES, *(f"{suffix}.gz" for suffix in (*PLAIN, *LINES)), *TABLES)
FIELD = "text"
_PARTS, _PART_BYTES = 64, 4096  # of a large file, by which a change is noticed
_TOGETHER_BYTES = 1 << 22  # of documents that are made into tokens together
_PIECE_BYTES = 1 << 22  # of a long document, where it may be cut
_ROWS = 1024  # of Parquet, that are read together
_CUT = ("The first line ends here.\n", "The second line; it begins here, with 1 number.\n")

Bad = Callable[[str], None]  # is told of what cannot be read


class BadText(ValueError):
    """A document that cannot be read; the message says why."""


def documents(
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    field: str = FIELD,
    cuts: bool = False,
    bad: Bad | None = None,
) -> Iterator[list[Text]]:
    """Yield documents, some at a time.

    Args:
        path: A file of text, or a folder of such files.
        progress: Called with the bytes that are read, and those of all files.
        field: Of JSON lines and Parquet, what holds the text.
        cuts: Whether a long document may come in pieces, between two lines.
        bad: Is told of what cannot be read, which is left out; None: it ends in an error.

    Raises:
        UsageError: There are none, or one cannot be read.
    """
    files = text_files(path)
    done, total = 0, sum(file.stat().st_size for file in files)
    held: list[Text] = []
    size = 0
    for file in files:
        for text in _of_file(file, field, cuts, bad):
            held.append(text)
            size += len(text.text)
            done += len(text.text)  # less than the bytes of the file in JSON and beyond ASCII
            if size >= _TOGETHER_BYTES:
                yield held
                held, size = [], 0
                progress(min(done, total), total)
    if held:
        yield held


def fingerprint(path: Path, tokenizer: str, field: str = FIELD) -> str:
    """Return a digest of the files of documents, by name, size, time and sampled content, and of the tokenizer."""
    digest = hashlib.sha256(Path(tokenizer).read_bytes() if tokenizer != "bytes" else b"bytes")
    digest.update(field.encode())
    for file in text_files(path):
        digest.update(f"{file.relative_to(path.parent)}\0{file.stat().st_size}\0".encode("utf-8", "surrogateescape"))
        digest.update(file.stat().st_mtime_ns.to_bytes(16, "little", signed=True) + _sampled_content(file))
    return digest.hexdigest()


def _sampled_content(path: Path) -> bytes:
    """Return a digest of parts of a file: it may change and keep its size."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        for part in range(_PARTS):
            file.seek(max(0, size - _PART_BYTES) * part // (_PARTS - 1))
            digest.update(file.read(_PART_BYTES))
    return digest.digest()


def text_files(path: Path) -> list[Path]:
    """Return the files of text at a path, in order.

    Raises:
        UsageError: It is neither a file nor a folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} is neither a file nor a folder; give the text to convert as SRC")
    return sorted(path / file for file in files_below(path) if file.lower().endswith(SUFFIXES))


def left_out(path: Path) -> list[str]:
    """Return a message about the files in a folder that are not text; no message if all are text."""
    if path.is_file():
        return []
    others = [Path(file) for file in files_below(path) if not file.lower().endswith(SUFFIXES)]
    kinds = Counter(one.suffix.lower() or "without suffix" for one in others if not one.name.startswith("."))
    return left_out_notes(path, kinds)


def _of_file(path: Path, field: str, cuts: bool, bad: Bad | None) -> Iterator[Text]:
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(TABLES):
        found = _of_table(path, field, bad)
    elif name.endswith(LINES):
        found = _of_lines(path, field, bad)
    else:
        found = _of_plain(path, cuts)
    try:
        yield from found
    except BadText as error:
        if bad is None:
            raise UsageError(f"{error}; leave out what cannot be read with --on-error skip") from error
        bad(str(error))
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.suffix.lower() == ".gz":
        with gzip.open(path, "rb") as packed:
            yield packed  # type: ignore[misc]
    else:
        with path.open("rb") as file:
            yield file


def _of_plain(path: Path, cuts: bool) -> Iterator[Text]:
    """Yield the one document of a file of text; in pieces if it is long and may be cut."""
    with _opened(path) as file:
        data = file.read(_PIECE_BYTES if cuts else -1)
        while more := file.read(_PIECE_BYTES) if cuts else b"":
            data += more
            if end := _cut_of(data):
                yield Text(_decoded(path, data[:end]), ends=False)
                data = data[end:]
        yield Text(_decoded(path, data))


def _cut_of(data: bytes) -> int:
    """Return where the last line begins that begins with something else than white space; 0 if none does."""
    end = data.rfind(b"\n") + 1
    while end and (end >= len(data) or data[end : end + 1].isspace() or data[end] >= 0x80):
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadText(f"{path} is not UTF-8 text: {error}") from error


def _of_lines(path: Path, field: str, bad: Bad | None) -> Iterator[Text]:
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                if line.strip():
                    yield Text(_of_line(path, number, line, field))
            except BadText as error:
                if bad is None:
                    raise
                bad(str(error))


def _of_line(path: Path, number: int, line: bytes, field: str) -> str:
    try:
        found = msgspec.json.decode(line)
        text: Any = found[field]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise BadText(f'{path}, line {number}: not JSON with a field "{field}"') from error
    if not isinstance(text, str):
        raise BadText(f'{path}, line {number}: the field "{field}" is {type(text).__name__}, and not text')
    return text


def _of_table(path: Path, field: str, bad: Bad | None) -> Iterator[Text]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentFault("Parquet files need pyarrow: pip install 'paceline[formats]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            if field not in table.schema_arrow.names:
                names = ", ".join(table.schema_arrow.names)
                raise UsageError(f"{path} has no column {field}; name one of {names} with --text-field")
            row = 0
            for batch in table.iter_batches(_ROWS, columns=[field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if isinstance(text, str):
                        yield Text(text)
                    elif bad is None:
                        raise BadText(f"{path}, row {row}: the column {field} has no text")
                    else:
                        bad(f"{path}, row {row}: the column {field} has no text")
    except pyarrow.ArrowException as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error


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
        parts = [self._ids(part) for part in (*_CUT, "".join(_CUT))]
        self.cuts = parts[0] + parts[1] == parts[2]

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._own.encode(text, add_special_tokens=False).ids
        return found

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
