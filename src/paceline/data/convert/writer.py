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
from paceline.data.convert.resuming import alone_in, check_folder
from paceline.data.convert.shard_writer import ShardWriter
from paceline.data.format.column_kinds import column_names
from paceline.data.format.model import Column, ColumnKind, Contents, Sample, Shard, Value
from paceline.data.sources import BadSample
from paceline.data.sources.dataset import kept, kind_of
from paceline.data.sources.dataset_images import Written
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
            classes: The names of the numbers in the column "label".
            images: The format of PIL images without an original file: "png" or "jpeg".

        Raises:
            UsageError: The folder is not empty.
        """
        self._folder, self._classes, self._images = Path(folder), classes, images
        self._shard_bytes = int(shard_mb * (1 << 20))
        self._mark = f"Writer {uuid4()}"  # unique, so that no conversion resumes this one
        check_folder(self._folder, self._mark)
        self._columns: list[Column] = []
        self._first: list[Mapping[str, Any]] = []
        self._shards: list[Shard] = []
        self._writer: ShardWriter | None = None
        self._count = 0
        self._lock = ExitStack()

    def __enter__(self) -> Writer:
        self._lock.enter_context(alone_in(self._folder, self._mark))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        """Write a sample.

        Args:
            sample: Its values by column name: numbers, text, bytes, PIL images, arrays, tensors, lists and dicts. A
                value may be None or left out.

        Raises:
            BadSample: A value cannot be stored, or is of another kind than in the first samples.
        """
        names = column_names([str(name) for name in sample])
        named = {names[str(name)]: value for name, value in sample.items()}
        if self._columns:
            self._add(named)
            return
        self._first.append(named)
        if len(self._first) >= _FIRST:
            self._begin()

    def _begin(self) -> None:
        """Determine the columns from the first samples, and write these samples."""
        kinds: dict[str, ColumnKind] = {}
        for sample in self._first:
            for name, value in sample.items():
                if value is not None:
                    kinds.setdefault(name, kind_of(value))
                    if kinds[name] == "int" and kind_of(value) == "float":
                        kinds[name] = "float"
        self._columns = [Column(name=name, kind=kind) for name, kind in kinds.items()]
        first, self._first = self._first, []
        for sample in first:
            self._add(sample)

    def _add(self, named: Mapping[str, Any]) -> None:
        name = f"sample {self._count}"
        more = [one for one in named if one not in {column.name for column in self._columns} and named[one] is not None]
        if more:
            raise BadSample(f"{name} has {', '.join(more)}, which none of the first {_FIRST} samples has")
        sample: Sample = {c.name: self._value(name, c, named.get(c.name)) for c in self._columns}
        sample = fitting(sample, name, self._columns)
        if self._writer is None:
            path = self._folder / f"shard-{len(self._shards):06d}.tar"
            self._writer = ShardWriter(path, self._columns)
        self._writer.add(f"{self._count:013d}", name, sample)
        self._count += 1
        if self._writer.size >= self._shard_bytes:
            self._end_shard()

    def _value(self, name: str, column: Column, value: Any) -> Value:
        if value is None:
            return None
        try:
            kind = kind_of(value)
            if kind != column.kind and (kind, column.kind) != ("int", "float"):
                raise BadSample(f"it is of kind {kind}, but of kind {column.kind} in the first samples")
            return kept(value, column, self._images)
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            raise BadSample(f"{name}: {column.name}: {error}") from error

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
