"""Text for conversion to tokens: documents in text files and in records of JSON, CSV and Parquet; and tokenizers."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.model import shown
from paceline.data.format.tokens import ByteTokenizer, Text, Tokenizer
from paceline.data.sources.files import files_below, left_out_notes, size_of, times_of
from paceline.data.sources.found import split_notes
from paceline.data.sources.json_lines import json_fault
from paceline.data.sources.table import fault_of_row, long_cells

PLAIN, LINES, TABLES = (".txt", ".md"), (".jsonl", ".ndjson"), (".parquet", ".pq")
JSON, CELLS = (".json",), (".csv", ".tsv")
# A folder is read for the first group of which it has files, as JSON and CSV files often only describe other files.
_GROUPS = tuple((*own, *(f"{suffix}.gz" for suffix in own)) for own in ((*PLAIN, *LINES, *TABLES), JSON, CELLS))
FIELD = "text"
_PARTS, _PART_BYTES = 64, 4096  # parts of a file that are read to notice changes
_TOGETHER_BYTES = 1 << 22  # of documents that are tokenized together
_PIECE_BYTES = 1 << 22  # of a piece of a long document
_ROWS = 1024  # of Parquet, read together
_CUT = ("The first line ends here.\n", "The second line; it begins here, with 1 number.\n")

Bad = Callable[[str], None]  # called with a message about each unreadable document


class BadText(ValueError):
    """A document cannot be read; the message gives the reason on one line."""

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options for reading documents."""

    text_field: str = FIELD  # the field of records with the text
    cuts: bool = False  # whether long documents may be split into pieces between lines
    bad: Bad | None = None  # called for unreadable documents, which are skipped; None raises an error
    other_fields: set[str] = field(default_factory=set)  # collects the names of fields that are not converted

    def skip(self, error: BadText) -> None:
        """Skip a document that cannot be read.

        Raises:
            BadText: Unreadable documents are not skipped.
        """
        if self.bad is None:
            raise error
        self.bad(str(error))


def documents(
    path: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    options: TextOptions = TextOptions(),  # noqa: B008 - frozen
) -> Iterator[list[Text]]:
    """Yield documents or pieces of documents, about 4 MiB at a time.

    Args:
        path: A file, or a folder of files.
        progress: Is called with the approximate number of bytes read and of all files.
        options: The options for reading.

    Raises:
        UsageError: The path does not exist, or a file cannot be read.
    """
    files = text_files(path)
    done, total = 0, sum(map(size_of, files))
    held: list[Text] = []
    size = 0
    for file in files:
        for text in _of_file(file, options):
            held.append(text)
            size += len(text.text)
            done += len(text.text)  # fewer than the bytes of the file in JSON, and for non-ASCII text
            if size >= _TOGETHER_BYTES:
                yield held
                held, size = [], 0
                progress(min(done, total), total)
    if held:
        yield held


def fingerprint(path: Path, tokenizer: str, text_field: str = FIELD) -> str:
    """Return a digest of the text files (names, sizes, times, sampled content), the tokenizer and the text field."""
    digest = hashlib.sha256(Path(tokenizer).read_bytes() if tokenizer != "bytes" else b"bytes")
    digest.update(text_field.encode())
    for file in text_files(path):
        digest.update(f"{file.relative_to(path.parent)}\0{size_of(file)}\0".encode("utf-8", "surrogateescape"))
        digest.update(times_of([file]).encode())
        with suppress(OSError):  # reading the file gives an error
            digest.update(_sampled_content(file))
    return digest.hexdigest()


def _sampled_content(path: Path) -> bytes:
    """Return a digest of parts of a file, because content can change without a change of size."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        for part in range(_PARTS):
            file.seek(max(0, size - _PART_BYTES) * part // (_PARTS - 1))
            digest.update(file.read(_PART_BYTES))
    return digest.digest()


def text_files(path: Path) -> list[Path]:
    """Return the text files at a path, sorted.

    Raises:
        UsageError: The path is neither a file nor a folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} is neither a file nor a folder; give the text to convert as SRC")
    below = list(files_below(path))
    groups = ([file for file in below if file.lower().endswith(suffixes)] for suffixes in _GROUPS)
    return sorted(path / file for file in next((files for files in groups if files), []))


def has_records(path: Path) -> bool:
    """Return whether any text file at a path has records with fields."""
    return any(_reader_of(file) is not _of_plain for file in text_files(path))


def notes(path: Path) -> list[str]:
    """Return messages about the files in a folder that are not text, and about files of several splits."""
    if path.is_file():
        return []
    text = text_files(path)
    taken = set(text)
    others = [Path(file) for file in files_below(path) if path / file not in taken]
    kinds = Counter(one.suffix.lower() or "without suffix" for one in others if not one.name.startswith("."))
    return [*left_out_notes(path, kinds), *split_notes(text)]


def _of_file(path: Path, options: TextOptions) -> Iterator[Text]:
    reader = _reader_of(path)
    try:
        yield from reader(path, options)
    except BadText as error:
        if options.bad is None:
            raise UsageError(f"{error}; leave out what cannot be read with --on-error skip") from error
        options.bad(str(error))
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _reader_of(path: Path) -> Callable[[Path, TextOptions], Iterator[Text]]:
    """Return the function that reads a file, chosen by its name."""
    name = path.name.lower().removesuffix(".gz")
    readers = ((TABLES, _of_table), (LINES, _of_lines), (JSON, _of_json), (CELLS, _of_cells))
    return next((reader for suffixes, reader in readers if name.endswith(suffixes)), _of_plain)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    if path.suffix.lower() == ".gz":
        with gzip.open(path, "rb") as packed:
            yield packed  # type: ignore[misc]
    else:
        with path.open("rb") as file:
            yield file


def _of_plain(path: Path, options: TextOptions) -> Iterator[Text]:
    """Yield the document of a text file, in pieces if it is long and may be split."""
    with _opened(path) as file:
        data = file.read(_PIECE_BYTES if options.cuts else -1)
        while more := file.read(_PIECE_BYTES) if options.cuts else b"":
            data += more
            if end := _cut_of(data):
                yield Text(_decoded(path, data[:end]), ends=False)
                data = data[end:]
        yield Text(_decoded(path, data))


def _cut_of(data: bytes) -> int:
    """Return the byte offset of the last line that starts with an ASCII character other than white space, or 0."""
    end = data.rfind(b"\n") + 1
    while end and (end >= len(data) or data[end : end + 1].isspace() or data[end] >= 0x80):
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadText(f"{path} is not UTF-8 text: {error}") from error


def _of_lines(path: Path, options: TextOptions) -> Iterator[Text]:
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            own = line.removeprefix(BOM_UTF8) if number == 1 else line
            if own.strip():
                yield from _of_record(f"{path}, line {number}", own, options)


def _of_json(path: Path, options: TextOptions) -> Iterator[Text]:
    """Yield the documents of a file of JSON lines, or of one JSON array of objects, which is read into memory.

    Raises:
        UsageError: The file is neither.
    """
    with _opened(path) as file:
        first = next((line for line in file if line.removeprefix(BOM_UTF8).strip()), b"").removeprefix(BOM_UTF8)
    try:
        if not first.lstrip().startswith(b"["):
            msgspec.json.decode(first or b"{}", type=dict[str, msgspec.Raw])
            yield from _of_lines(path, options)
            return
        with _opened(path) as file:
            records = msgspec.json.decode(file.read().removeprefix(BOM_UTF8), type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} is neither JSON lines nor one array of objects ({error}); write each document as an object with "
            f'the field "{options.text_field}", on a line of its own'
        ) from error
    for number, record in enumerate(records):
        yield from _of_record(f"{path}, [{number}]", bytes(record), options)


def _of_record(name: str, record: bytes, options: TextOptions) -> Iterator[Text]:
    """Yield the text of a JSON record, or nothing if the record has no text and is skipped."""
    try:
        try:
            found = msgspec.json.decode(record)
            text: Any = found[options.text_field]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadText(f"{name}: it is not JSON: {json_fault(record, error)}") from error
        except (KeyError, TypeError) as error:
            raise BadText(f'{name}: it is not an object with a field "{options.text_field}"') from error
        if not isinstance(text, str):
            raise BadText(f'{name}: the field "{options.text_field}" is {type(text).__name__}, and not text')
    except BadText as error:
        options.skip(error)
        return
    options.other_fields.update(one for one in found if one != options.text_field)
    yield Text(text)


def _of_cells(path: Path, options: TextOptions) -> Iterator[Text]:
    """Yield the texts of a column of a CSV or TSV file.

    Raises:
        UsageError: The file has no such column, or has it twice.
        BadText: The rest of the file cannot be read.
    """
    try:
        with long_cells(), _opened(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as lines:
            is_tabbed = path.name.lower().removesuffix(".gz").endswith(".tsv")
            reader = csv.DictReader(lines, delimiter="\t" if is_tabbed else ",", strict=True)
            heads = list(reader.fieldnames or ())
            if heads.count(options.text_field) != 1:
                raise _no_column(path, options.text_field, heads)
            options.other_fields.update(head for head in heads if head != options.text_field)
            for row in reader:
                if fault := fault_of_row(row):
                    options.skip(BadText(f"{path}, line {reader.line_num}: {fault}"))
                else:
                    yield Text(row[options.text_field])
    except UnicodeDecodeError as error:
        raise BadText(f"{path} is not UTF-8 text: {error}") from error
    except csv.Error as error:
        raise BadText(f"{path}, line {reader.line_num} and all that follows cannot be read as CSV: {error}") from error


def _no_column(path: Path, name: str, names: Sequence[str]) -> UsageError:
    if name in names:
        return UsageError(f"{path} has two columns called {name}; rename one of them")
    return UsageError(f"{path} has no column {name}; name one of {', '.join(names)} with --text-field")


def _of_table(path: Path, options: TextOptions) -> Iterator[Text]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise EnvironmentFault("Parquet files need pyarrow: pip install 'paceline[formats]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as table:
            names = table.schema_arrow.names
            if names.count(options.text_field) != 1:
                raise _no_column(path, options.text_field, names)
            options.other_fields.update(name for name in names if name != options.text_field)
            row = 0
            for batch in table.iter_batches(_ROWS, columns=[options.text_field]):
                for text in batch.column(0).to_pylist():
                    row += 1
                    if isinstance(text, str):
                        yield Text(text)
                    else:
                        options.skip(BadText(f"{path}, row {row}: the column {options.text_field} has no text"))
    except pyarrow.ArrowException as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error


class FileTokenizer:
    """A tokenizer from a ``tokenizer.json`` of Hugging Face's tokenizers."""

    def __init__(self, path: Path) -> None:
        """Load the tokenizer.

        Args:
            path: The path of the ``tokenizer.json``.

        Raises:
            EnvironmentFault: The package tokenizers is not installed.
            UsageError: The file is no tokenizer, or has no end-of-text token.
        """
        try:
            from tokenizers import Tokenizer as Own
        except ImportError as error:
            raise EnvironmentFault("a tokenizer.json needs tokenizers: pip install 'paceline[text]'") from error
        try:
            self._own = Own.from_file(str(path))
        except Exception as error:
            raise UsageError(f"{path} is not a tokenizer: {error}") from error
        self._own.no_truncation()  # truncation would shorten documents
        self._own.no_padding()
        ends = [self._own.token_to_id(name) for name in ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")]
        found = next((end for end in ends if end is not None), None)
        if found is None:
            raise UsageError(f"{path} has no end-of-text token; add one, such as <|endoftext|>")
        self.name, self.vocabulary, self.end = path.name, int(self._own.get_vocab_size()), int(found)
        self.note = self._left_out()
        parts = [self._ids(part) for part in (*_CUT, "".join(_CUT))]
        self.cuts = parts[0] + parts[1] == parts[2]

    def _left_out(self) -> str:
        """Return a note about tokens, such as [CLS], that Paceline leaves out, or an empty text if there are none."""
        added = [one for one in self._own.encode("a").ids if one not in self._ids("a")]
        if not added:
            return ""
        named = " and ".join(str(self._own.id_to_token(one)) for one in added)
        return (
            f"left out: {named}, which {self.name} would add to each text; each document ends with "
            f"{self._own.id_to_token(self.end)} (id {self.end})"
        )

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._own.encode(text, add_special_tokens=False).ids
        return found

    def ids(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """Return the ids of each text, without special tokens at its start and end."""
        return (one.ids for one in self._own.encode_batch(list(texts), add_special_tokens=False))


def tokenizer_of(name: str) -> Tokenizer:
    """Return the tokenizer ``bytes``, or the tokenizer of a file.

    Raises:
        UsageError: There is no such file, or it is no tokenizer.
    """
    if name == "bytes":
        return ByteTokenizer()
    if not Path(name).is_file():
        raise UsageError(f"--tokenizer {name}: give 'bytes', or the path of a tokenizer.json")
    return FileTokenizer(Path(name))
