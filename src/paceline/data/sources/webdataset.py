"""Conversion source: tars in WebDataset's form: the files of a sample share a name up to the first dot, in sequence.

The tars are scanned once, and then each file is read from its offset. A compressed tar is unpacked into memory.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import column_names, column_of_suffix, plain_suffix
from paceline.data.format.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.data.sources.exported_columns import exported_columns
from paceline.data.sources.files import left_out_notes, times_of
from paceline.data.sources.table import is_decimal

PLAIN = (".tar",)
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_WHOLE = re.compile("[+-]?[0-9]+")
_KEPT_UNPACKED = 2  # tars in memory
_PIECE_BYTES = 1 << 20  # of zeros, read at a time
_UNPACKED_BY: Mapping[str, Callable[[Path], Any]] = {".bz2": bz2.open, ".xz": lzma.open}  # else gzip


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar, with its offset and size in bytes."""

    suffix: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Group:
    """A sample: its tar, its key, and its files."""

    tar: int
    key: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Tars:
    """The samples in tars of WebDataset's form."""

    files: Sequence[Path]
    groups: Sequence[Group]
    classes: Sequence[str] = ()
    left_out: Sequence[str] = ()  # messages about what is not converted
    told: Mapping[str, ColumnKind] = field(default_factory=dict)  # kinds of columns, from `columns.json`

    def __reduce__(self) -> tuple[type[Tars], tuple[Any, ...]]:
        return type(self), (self.files, self.groups, self.classes, self.left_out, self.told)

    @property
    def version(self) -> str:
        """A digest of the modification times of the files."""
        return times_of(self.files)

    @property
    def notes(self) -> Sequence[str]:
        """Messages about what is not converted."""
        return self.left_out

    @cached_property
    def reads_groups(self) -> bool:
        """Whether samples are read in groups, because a compressed tar is unpacked whole."""
        return any(map(_is_packed, self.files))

    @cached_property
    def _unpacked(self) -> Callable[[Path], bytes]:
        return lru_cache(_KEPT_UNPACKED)(_unpacked)

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns; a sample can lack values."""
        return list({column.name: column for column in self._by_suffix.values()}.values())

    @cached_property
    def _by_suffix(self) -> dict[str, Column]:
        """The column of each suffix. If a sample has two image suffixes, their columns are named by the suffixes."""
        found = {one.suffix: self._column(one.suffix) for group in self.groups for one in group.members}
        names = {suffix: column.name for suffix, column in found.items()}
        both = {suffix for group in self.groups for suffix in _alike([one.suffix for one in group.members], names)}
        apart = column_names(sorted(both))
        kinds: dict[str, ColumnKind] = {}
        for suffix, column in found.items():
            name = apart.get(suffix, column.name)
            if kinds.setdefault(name, column.kind) != column.kind:
                raise UsageError(f"files .{suffix} are {column.kind}, and others of column {name} are {kinds[name]}")
        return {suffix: replace(column, name=apart.get(suffix, column.name)) for suffix, column in found.items()}

    def _column(self, suffix: str) -> Column:
        """Return the column of a suffix: one that `columns.json` names, else by the suffix alone."""
        usual = column_of_suffix(suffix)
        names = (usual.name, suffix, *(["image"] if usual.kind == "bytes" else []))  # of an image with an odd suffix
        return next((Column(name=name, kind=self.told[name]) for name in names if name in self.told), usual)

    def size(self, number: int) -> int:
        """Return the number of bytes of a sample's files."""
        return sum(member.size for member in self.groups[number].members)

    def name(self, number: int) -> str:
        """Return the file name of the tar and the key, for messages."""
        group = self.groups[number]
        return f"{self.files[group.tar].name}/{group.key}"

    def sample(self, number: int) -> Sample:
        """Read the files of a sample.

        Raises:
            BadSample: A file cannot be read or does not fit its column, or two files belong to one column.
        """
        group = self.groups[number]
        parts: Mapping[str, Member] = {self._by_suffix[member.suffix].name: member for member in group.members}
        if len(parts) < len(group.members):
            files = ", ".join(member.suffix for member in group.members)
            raise BadSample(f"{self.name(number)} has two files of one column among {files}; rename one of them")
        read = self._bytes(number, self.files[group.tar], parts)
        return {column.name: self._value(number, column, parts.get(column.name), read) for column in self.columns}

    def _bytes(self, number: int, path: Path, parts: Mapping[str, Member]) -> Mapping[str, bytes]:
        try:
            if _is_packed(path):
                data = self._unpacked(path)
                return {name: data[one.offset : one.offset + one.size] for name, one in parts.items()}
            with path.open("rb") as file:
                return {name: os.pread(file.fileno(), one.size, one.offset) for name, one in parts.items()}
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise BadSample(f"{self.name(number)} cannot be read: {error}") from error

    def _value(self, number: int, column: Column, member: Member | None, read: Mapping[str, bytes]) -> Value:
        if member is None:
            return None
        data = read[column.name]
        if len(data) != member.size:
            raise BadSample(f"{self.name(number)}.{member.suffix} is truncated: {len(data):,} of {member.size:,} bytes")
        if not column.is_number:
            return Payload(data=data, suffix=plain_suffix(member.suffix.rpartition(".")[2]))
        return _number(f"{self.name(number)}.{member.suffix}", data, column)


def _number(name: str, data: bytes, column: Column) -> int | float:
    """Return the number in a file.

    Raises:
        BadSample: The file has no number, or one that its column cannot store unchanged.
    """
    try:
        said = data.decode().strip()
        found = float(said) if column.kind == "float" else int(said)
    except ValueError as error:
        kind = "decimal number" if column.kind == "float" else "whole number; files of decimal numbers are NAME.float"
        raise BadSample(f"{name} says {data[:40]!r}, which is no {kind}") from error
    if column.kind == "int" and not _WHOLE.fullmatch(said):
        raise BadSample(f"{name} says {data[:40]!r}, which would become {found}; give text (.txt)")
    is_named = not any(map(str.isdigit, said))  # nan or inf
    if column.kind == "float" and not is_named and not is_decimal(said):
        raise BadSample(f"{name} says {data[:40]!r}, which would become {found}; give text (.txt)")
    return found


def _alike(suffixes: Sequence[str], names: Mapping[str, str]) -> set[str]:
    """Return the suffixes that share a column name with another suffix; `names` maps a suffix to a column name."""
    called = [names[suffix] for suffix in suffixes]
    return {suffix for suffix in suffixes if called.count(names[suffix]) > 1}


def tars(paths: Sequence[Path]) -> Tars:
    """Find the samples of tars.

    Args:
        paths: The paths of the tars.

    Raises:
        UsageError: A file is no tar, a tar has links, or there are no samples.
    """
    skipped: Counter[str] = Counter()
    endless: list[Path] = []
    groups = [group for number, path in enumerate(paths) for group in _groups(number, path, skipped, endless)]
    if not groups:
        raise UsageError(f"no samples in {', '.join(map(str, paths[:3]))}: file names must be KEY.SUFFIX")
    cut = [f"{path} has no mark at its end; if it was cut off, samples are missing" for path in endless]
    exported = exported_columns(paths[0].parent)
    left_out = [*left_out_notes(paths[0].parent, skipped), *cut]
    return Tars(list(paths), groups, exported.classes, left_out, exported.columns)


def _is_packed(path: Path) -> bool:
    return not path.name.lower().endswith(PLAIN) and path.name.lower().endswith(PACKED)


def _opened(path: Path) -> Any:
    return _UNPACKED_BY.get(path.suffix.lower(), gzip.open)(path) if _is_packed(path) else path.open("rb")


def _unpacked(path: Path) -> bytes:
    with _opened(path) as file:
        data: bytes = file.read()
        return data


def _groups(number: int, path: Path, skipped: Counter[str], endless: list[Path]) -> Iterator[Group]:
    """Yield the samples of a tar; count files that belong to no sample, and note a tar without an end mark.

    Raises:
        UsageError: The tar cannot be read, or the files of a sample do not follow each other.
    """
    key, members, keys = "", list[Member](), set[str]()
    try:
        for one in _members(path, endless):
            folder, _, file = one.name.rpartition("/")
            stem, dot, suffix = file.partition(".")
            if one.isdir() or not _has_bytes(path, one):
                continue
            if not dot or not stem or not suffix or suffix.startswith("."):
                skipped["in tars whose names are not KEY.SUFFIX"] += 1
                continue
            own = f"{folder}/{stem}" if folder else stem
            if own in keys and own != key:
                raise UsageError(
                    f"{path}: {one.name} does not follow the other files of sample {own}; unpack the tar, and pack its "
                    "files in the order of their names (tar --sort=name)"
                )
            if members and own != key:
                yield Group(number, key, tuple(members))
                members = []
            key = own
            keys.add(key)
            members.append(Member(suffix, one.offset_data, one.size))
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise UsageError(f"{path} cannot be read as a tar ({error}); unpack it first if it is compressed") from error
    if members:
        yield Group(number, key, tuple(members))


def _members(path: Path, endless: list[Path]) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a file with one tar, or several concatenated tars."""
    with _opened(path) as file:
        begin: int | None = 0
        while begin is not None:
            file.seek(begin)
            archive = tarfile.TarFile(fileobj=file)
            yield from archive
            begin = _next_archive(path, file, archive.offset, endless)


def _next_archive(path: Path, file: Any, end: int, endless: list[Path]) -> int | None:
    """Return the byte offset of the next tar after the zero blocks at the end of a tar, or None if nothing follows.

    Raises:
        ReadError: The following bytes are no tar.
    """
    file.seek(end)
    at = end
    while piece := file.read(_PIECE_BYTES):
        zeros = len(piece) - len(piece.lstrip(b"\0"))
        if zeros < len(piece):
            begin = (at + zeros) // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
            if begin <= end:
                raise tarfile.ReadError(f"there is no header at byte {end}, and it does not end there")
            return int(begin)
        at += len(piece)
    if at == end:
        endless.append(path)
    return None


def _has_bytes(path: Path, one: tarfile.TarInfo) -> bool:
    """Return whether a tar member is a regular file, whose bytes follow its header; False for devices and pipes.

    Raises:
        UsageError: The member is a link or a sparse file.
    """
    if one.issparse():
        raise UsageError(
            f"{path}: {one.name} is a sparse file; pack the files without tar --sparse, which leaves out zeros"
        )
    if one.issym() or one.islnk():
        raise UsageError(
            f"{path}: {one.name} is a link to {one.linkname}, without its own bytes; pack the files with tar "
            "--dereference"
        )
    return one.isreg()
