"""Tars as WebDataset has them: files of a sample share a name up to its first dot, and follow each other.

Where a file lies in its tar is noted once, and it is read from there; compressed tars would have to be read through.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from paceline.data.kinds import column_names, column_of_suffix, plain_suffix
from paceline.data.model import Column, ColumnKind, Payload, Sample, Value
from paceline.data.sources import BadSample
from paceline.errors import UsageError


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar."""

    suffix: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Group:
    """The files of a sample."""

    tar: int
    key: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Tars:
    """All samples of some tars."""

    files: Sequence[Path]
    groups: Sequence[Group]
    classes: Sequence[str] = ()
    version: str = ""

    def __len__(self) -> int:
        return len(self.groups)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """What samples have; a sample may lack some."""
        return list({column.name: column for column in self._by_suffix.values()}.values())

    @cached_property
    def _by_suffix(self) -> dict[str, Column]:
        """The columns by suffixes; two of pictures are called by them (``jpg``, ``png``), if a sample has both."""
        found = {one.suffix: column_of_suffix(one.suffix) for group in self.groups for one in group.members}
        names = {suffix: column.name for suffix, column in found.items()}
        both = {suffix for group in self.groups for suffix in _alike([one.suffix for one in group.members], names)}
        apart = column_names(sorted(both))
        kinds: dict[str, ColumnKind] = {}
        for suffix, column in found.items():
            name = apart.get(suffix, column.name)
            if kinds.setdefault(name, column.kind) != column.kind:
                raise UsageError(f"files .{suffix} are {column.kind}, and others of column {name} are {kinds[name]}")
        return {suffix: replace(column, name=apart.get(suffix, column.name)) for suffix, column in found.items()}

    def size(self, number: int) -> int:
        """Return the bytes of its files."""
        return sum(member.size for member in self.groups[number].members)

    def name(self, number: int) -> str:
        """Return the tar and the name in it."""
        group = self.groups[number]
        return f"{self.files[group.tar].name}/{group.key}"

    def sample(self, number: int) -> Sample:
        """Read the files of a sample."""
        group = self.groups[number]
        parts: Mapping[str, Member] = {self._by_suffix[member.suffix].name: member for member in group.members}
        if len(parts) < len(group.members):
            files = ", ".join(member.suffix for member in group.members)
            raise BadSample(f"{self.name(number)} has two files of one column among {files}; rename one of them")
        with self.files[group.tar].open("rb") as file:
            read = {name: os.pread(file.fileno(), one.size, one.offset) for name, one in parts.items()}
        return {column.name: self._value(number, column, parts.get(column.name), read) for column in self.columns}

    def _value(self, number: int, column: Column, member: Member | None, read: Mapping[str, bytes]) -> Value:
        if member is None:
            return None
        data = read[column.name]
        if len(data) != member.size:
            raise BadSample(f"{self.name(number)}.{member.suffix} is truncated: {len(data):,} of {member.size:,} bytes")
        if not column.is_number:
            return Payload(data=data, suffix=plain_suffix(member.suffix.rpartition(".")[2]))
        try:
            return float(data) if column.kind == "float" else int(data)
        except ValueError as error:
            raise BadSample(f"{self.name(number)}.{member.suffix} is not a number: {data[:40]!r}") from error


def _alike(suffixes: Sequence[str], names: Mapping[str, str]) -> set[str]:
    """Return the suffixes of a sample whose files would be of one column."""
    called = [names[suffix] for suffix in suffixes]
    return {suffix for suffix in suffixes if called.count(names[suffix]) > 1}


def tars(paths: Sequence[Path]) -> Tars:
    """List the samples of tars.

    Raises:
        UsageError: One is no plain tar, or there are no samples.
    """
    groups = [group for number, path in enumerate(paths) for group in _groups(number, path)]
    if not groups:
        raise UsageError(f"no samples in {', '.join(map(str, paths[:3]))}: file names must be KEY.SUFFIX")
    return Tars(list(paths), groups)


def _groups(number: int, path: Path) -> Iterator[Group]:
    key, members = "", list[Member]()
    try:
        with tarfile.open(path, "r:") as archive:
            for one in archive:
                folder, _, file = one.name.rpartition("/")
                stem, dot, suffix = file.partition(".")
                if not one.isfile() or not dot or not stem:
                    continue
                own = f"{folder}/{stem}" if folder else stem
                if members and own != key:
                    yield Group(number, key, tuple(members))
                    members = []
                key = own
                members.append(Member(suffix, one.offset_data, one.size))
    except (OSError, tarfile.TarError) as error:
        raise UsageError(f"{path} cannot be read as a tar ({error}); unpack a compressed tar first") from error
    if members:
        yield Group(number, key, tuple(members))
