"""Writing of a sharded dataset from Python, one sample at a time: `with paceline.data.Writer("shards/") as writer:`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from paceline.core.errors import UsageError
from paceline.data.convert.convert import write_data_set
from paceline.data.convert.resuming import WRITER_MARK, alone_in, check_folder
from paceline.data.convert.shard_writer import ShardWriter
from paceline.data.format.column_kinds import column_names
from paceline.data.format.contents import check_classes
from paceline.data.format.folders import is_url, local_name
from paceline.data.format.model import Column, ColumnKind, Contents, Payload, Sample, Shard, Value
from paceline.data.sources import BadSample
from paceline.data.sources.dataset import kept, key_text, kind_of
from paceline.data.sources.dataset_images import Written
from paceline.data.sources.files import LABEL
from paceline.data.sources.sample_checks import fitting

_FIRST = 16  # samples that determine the columns


class Writer:
    """Writes a sharded dataset. The dataset is complete when the `with` block ends without an error.

    Samples stay in the order in which they are written, and `Loader(shuffle=True)` mixes samples within 32 blocks of
    about 2 MB. So write samples in random order if they are sorted, for example by class.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        shard_mb: float = 128,
        classes: Sequence[str] = (),
        images: Written | None = None,
    ) -> None:
        """Check that the folder is new or empty; nothing is written yet.

        Args:
            folder: A new or empty folder.
            shard_mb: The approximate size of a shard in MiB.
            classes: The names of the numbers in the column "label", from 0. Negative numbers, such as -1 for samples
                without a label, have no name.
            images: The format of PIL images without an original file: "png" or "jpeg".

        Raises:
            UsageError: The folder is not empty or not on this machine, or the name of a class is not UTF-8.
        """
        check_classes(classes)
        if is_url(folder):
            raise UsageError(f"a Writer writes to a folder on this machine, and {folder} is in a store; copy it there")
        self._folder, self._classes, self._images = Path(local_name(folder)), classes, images
        self._shard_bytes = int(shard_mb * (1 << 20))
        self._mark = f"{WRITER_MARK}{uuid4()}"  # unique, so that no conversion resumes this one
        check_folder(self._folder, self._mark)
        self._columns: list[Column] = []
        self._first: list[dict[str, Value]] = []
        self._kinds: dict[str, ColumnKind | None] = {}  # of the first samples; None for columns without a value so far
        self._shards: list[Shard] = []
        self._writer: ShardWriter | None = None
        self._count = 0
        self._lock = ExitStack()
        self._is_open = False

    def __enter__(self) -> Writer:
        self._lock.enter_context(alone_in(self._folder, self._mark))
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_open = False
        with self._lock:
            try:
                if error is None:
                    self._finish()
            finally:
                if self._writer is not None:
                    self._writer.__exit__(None, None, None)
                if not (self._folder / "dataset.json").exists():
                    for shard in self._shards:
                        for name in (shard.file, shard.index):
                            (self._folder / name).unlink(missing_ok=True)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write a sample. Its values are copied or encoded before this returns, so the caller may reuse them.

        Args:
            sample: Its values by column name: numbers, text, bytes, PIL images, arrays, tensors, lists and dicts. A
                value may be None or left out.

        Raises:
            BadSample: A value cannot be stored, is of another kind than in the first samples, or is a label
                without a class.
            UsageError: A column has only None in the first samples, or the call is outside of the `with` block.
        """
        if not self._is_open:
            raise UsageError(
                f"a Writer stores samples inside of its with block only: with Writer({str(self._folder)!r}) as writer: "
                "writer.write(sample)"
            )
        if not isinstance(sample, Mapping):
            raise BadSample(
                f"{self._name} is a {type(sample).__name__}; give a dictionary of values by column name, such as "
                '{"image": image, "label": 3}'
            )
        names = column_names([key_text(name) for name in sample])
        named = {names[key_text(name)]: value for name, value in sample.items()}
        if self._columns:
            self._add(named)
            return
        kinds = self._kinds | {name: self._kind_with(name, value) for name, value in named.items()}
        columns = [Column(name=name, kind=kind) for name, kind in kinds.items() if kind]
        self._first.append({column.name: self._value(column, named.get(column.name)) for column in columns})
        self._kinds = kinds
        if len(self._first) >= _FIRST:
            self._begin()

    @property
    def _name(self) -> str:
        """The name of the sample that is written next, for messages."""
        return f"sample {self._count + len(self._first)}"

    def _kind_with(self, name: str, value: Any) -> ColumnKind | None:
        """Return the kind of a column after one more of the first samples: int and float give float."""
        before = self._kinds.get(name)
        if value is None:
            return before
        try:
            kind = kind_of(value)
        except BadSample as error:
            raise BadSample(f"{self._name}: {name}: {error}") from error
        return kind if before is None or (before, kind) == ("int", "float") else before

    def _begin(self) -> None:
        """Determine the columns from the first samples, and write these samples.

        Raises:
            UsageError: A column has no value in any of these samples, or there is no column.
        """
        nothing = [name for name, kind in self._kinds.items() if kind is None]
        if nothing or not self._kinds:
            said = f"have only None in {', '.join(nothing)}" if nothing else "are empty"
            way_out = "leave the column out, or write" if nothing else "write"
            raise UsageError(f"the first {len(self._first)} samples {said}; {way_out} samples with values first")
        self._columns = [Column(name=name, kind=kind) for name, kind in self._kinds.items() if kind is not None]
        first, self._first = self._first, []
        for values in first:
            self._store({c.name: self._value(c, values.get(c.name)) for c in self._columns})

    def _add(self, named: Mapping[str, Any]) -> None:
        more = [one for one in named if one not in self._kinds and named[one] is not None]
        if more:
            raise BadSample(f"{self._name} has {', '.join(more)}, which none of the first {_FIRST} samples has")
        self._store({c.name: self._value(c, named.get(c.name)) for c in self._columns})

    def _store(self, sample: Sample) -> None:
        sample = fitting(sample, self._name, self._columns)
        label = sample.get(LABEL)
        if self._classes and label is not None and not (isinstance(label, int) and label < len(self._classes)):
            raise BadSample(
                f"{self._name}: {LABEL}: it is {_told(label)}, and the {len(self._classes)} classes have the numbers 0 "
                f"to {len(self._classes) - 1}; give a number, and a name for each number, or leave classes out"
            )
        if self._writer is None:
            path = self._folder / f"shard-{len(self._shards):06d}.tar"
            self._writer = ShardWriter(path, self._columns)
        self._writer.add(f"{self._count:013d}", self._name, sample)
        self._count += 1
        if self._writer.size >= self._shard_bytes:
            self._end_shard()

    def _value(self, column: Column, value: Any) -> Value:
        """Return a copy of a value in the form that shards store, so that the caller may reuse the object."""
        if value is None or isinstance(value, Payload):
            return value
        try:
            kind = kind_of(value)
            if kind != column.kind and (kind, column.kind) != ("int", "float"):
                raise BadSample(f"it is of kind {kind}, but of kind {column.kind} in the first samples")
            return kept(value, column, self._images)
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            raise BadSample(f"{self._name}: {column.name}: {error}") from error

    def _end_shard(self) -> None:
        assert self._writer is not None
        with self._writer as writer:
            self._shards.append(writer.finish())
        self._writer = None

    def _finish(self) -> None:
        if self._first:
            self._begin()
        if self._writer is not None:
            self._end_shard()
        if not self._shards:
            raise UsageError(f"no samples were written to {self._folder}; write at least one")
        write_data_set(
            self._folder,
            Contents(
                samples=self._count,
                columns=self._columns,
                shards=self._shards,
                classes=list(self._classes),
                made={"verbatim": True, "mixed": False},
            ),
        )


def _told(value: Value) -> str:
    return repr(value.data.decode(errors="replace")) if isinstance(value, Payload) else repr(value)
