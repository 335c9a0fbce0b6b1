"""Several datasets as one: the samples of one dataset follow those of the other. Nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.format.contents import Blocks, read_shard_index
from paceline.data.format.folders import LocalFolder, LostPart, Stop
from paceline.data.format.image_modes import EACH, column_mode, joint_palette
from paceline.data.format.index import DamagedData, ShardIndex
from paceline.data.format.model import Column, Contents, Shard, index_name
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.token_dataset import TokenDataset


class MergedShards(ShardedDataset):
    """Sharded datasets with the same columns, as one dataset."""

    def __init__(self, parts: Sequence[ShardedDataset]) -> None:
        """Merge datasets.

        Args:
            parts: Datasets on this machine with the same column names, column kinds and classes.

        Raises:
            UsageError: Their columns or classes differ.
        """
        self._parts = parts
        self._open(MergedFolder(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts,)


class MergedFolder(LocalFolder):
    """The folders of several datasets; the file name of each shard is a whole path."""

    def __init__(self, parts: Sequence[ShardedDataset]) -> None:
        super().__init__(parts[0].folder)
        self._parts = parts

    @property
    def address(self) -> str:
        """The paths of all folders."""
        return ", ".join(part.address for part in self._parts)

    def contents(self) -> Contents:
        """Return the description of the merged dataset."""
        first = self._parts[0].contents
        shards = [replace(one, file=str(p.folder / one.file)) for p in self._parts for one in p.contents.shards]
        self._shards = [Path(shard.file) for shard in shards]
        columns = _columns(self._parts)
        return Contents(samples=sum(map(len, self._parts)), columns=columns, shards=shards, classes=first.classes)

    def blocks(self, contents: Contents) -> Blocks:
        """Return the table of blocks of the merged dataset."""
        found, shards, samples = [], 0, 0
        for part in self._parts:
            own = part.blocks.copy()
            own["shard"] += shards
            own["first"] += samples
            found.append(own)
            shards, samples = shards + len(part.contents.shards), samples + len(part)
        merged: Blocks = np.concatenate(found)
        return merged

    def index(self, number: int, shard: Shard, stop: Stop) -> ShardIndex:
        """Return the index of a shard."""
        path = Path(shard.file)
        try:
            return read_shard_index(path.parent, path.name, index_name(path.name))
        except DamagedData as error:
            raise LostPart(str(error), number) from error


def _columns(parts: Sequence[ShardedDataset]) -> list[Column]:
    """Return the columns of the merged dataset.

    Raises:
        UsageError: Column names, column kinds or classes differ.
    """
    first = parts[0]
    for part in parts[1:]:
        for one, other in ((first, part), (part, first)):
            there = {column.name: column.kind for column in other.contents.columns}
            for column in one.contents.columns:
                if there.get(column.name) != column.kind:
                    raise UsageError(
                        f"{one.address} has the column {column.name} ({column.kind}), and in {other.address} it "
                        f"{'is ' + there[column.name] if column.name in there else 'is missing'}; convert both with "
                        "the same columns"
                    )
        if list(part.contents.classes) != list(first.contents.classes):
            raise UsageError(
                f"the labels of {first.address} and {part.address} are numbers of different classes; convert the "
                f"second with --classes-from {first.address}"
            )
    return [
        _column(column, [part.contents.column(column.name) or column for part in parts])
        for column in first.contents.columns
    ]


def _column(column: Column, all_of_them: Sequence[Column]) -> Column:
    modes = {one.mode for one in all_of_them}
    mode = EACH if EACH in modes else column_mode(modes)
    palette = reduce(joint_palette, (one.palette for one in all_of_them)) if mode == "P" else ""
    return replace(column, optional=any(one.optional for one in all_of_them), mode=mode, palette=palette)


class MergedTokens(TokenDataset):
    """Token datasets as one dataset."""

    def __init__(self, parts: Sequence[TokenDataset]) -> None:
        """Merge datasets.

        Args:
            parts: Datasets with samples of the same length and the same tokenizer.

        Raises:
            UsageError: Lengths or tokenizers differ.
        """
        first = parts[0]
        for part in parts[1:]:
            for what, one, other in (
                ("samples of length", first.length, part.length),
                ("tokens of the tokenizer", first.contents.tokenizer, part.contents.tokenizer),
            ):
                if one != other:
                    raise UsageError(f"{first.folder} has {what} {one}, and {part.folder} {other}; give the same")
        self._parts = parts
        self.folder, self.length = first.folder, first.length
        self.contents = replace(
            first.contents,
            tokens=sum(part.contents.tokens for part in parts),
            documents=sum(part.contents.documents for part in parts),
            shards=[shard for part in parts for shard in part.contents.shards],
        )
        self._dtype = str(np.result_type(*(part.dtype for part in parts)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts,)

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        return np.append(0, np.cumsum([count for part in self._parts for count in np.diff(part._first)])).astype(
            np.int64
        )

    @cached_property
    def _windows(self) -> list[NDArray[Any]]:
        return [window for part in self._parts for window in part._windows]
