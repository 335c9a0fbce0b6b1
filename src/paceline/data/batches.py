"""How does a batch come about? From the numbers of its samples, in one thread, each column straight into one array."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.faults import Faults, collated
from paceline.data.index import DamagedData
from paceline.data.model import Column
from paceline.data.pictures import Decoder, UndecodablePicture
from paceline.data.reach import Reach
from paceline.data.sharded import Place, ShardedDataset
from paceline.data.stages import Clock
from paceline.data.tokens import TokenDataset

Numbers = NDArray[np.int64]


class Maker(Protocol):
    """Makes batches; several threads at once."""

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch of some samples.

        Args:
            ids: Numbers of the samples.
            epoch: For random numbers.
        """


class SampleBatches:
    """Batches of whatever a sharded data set has, each sample through the user's function."""

    def __init__(
        self,
        reach: Reach,
        transform: Callable[[Mapping[str, Any]], Any] | None,
        collate: Callable[[list[Any]], Any] | None,
        *,
        exact: bool,
    ) -> None:
        self._reach = reach
        self._columns = list(reach.dataset.contents.columns)
        self._transform = transform
        self._collate = collate
        self._decoder = decoder_for(self._columns, exact=exact)

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch as `torch.utils.data.default_collate` does, or as the user's function does."""
        made: list[Any] = []
        dataset = self._reach.dataset
        places = dataset.places(ids)
        columns = {column.name: self._column(column, ids, places) for column in self._columns}
        with self._reach.clock.batch() as lap:
            for number, place in enumerate(places):
                try:
                    sample = {c.name: self._value(c, place, columns[c.name][number]) for c in self._columns}
                    lap.mark("decode")
                    made.append(sample if self._transform is None else self._transform(sample))
                    lap.mark("transform")
                except (DamagedData, UndecodablePicture, ValueError) as error:
                    self._reach.faults.met(dataset.name(place), error)
            batch = collated(made, len(ids), self._collate)
            lap.mark("collate", len(ids))
        return batch

    def _column(self, column: Column, ids: Numbers, places: Sequence[Place]) -> Sequence[Any]:
        if column.is_number:
            found: list[Any] = self._reach.dataset.numbers(column.name, places).tolist()
            return found
        return self._reach.payloads(column.name, ids, places)

    def _value(self, column: Column, place: Place, kept: Any) -> Any:
        if column.is_number:
            return kept
        return value_of(column, self._reach.checked(column.name, place, kept), self._decoder)


class ShardedSamples:
    """Samples of a sharded data set one by one, for worker processes."""

    def __init__(
        self, dataset: ShardedDataset, transform: Callable[[Mapping[str, Any]], Any] | None, *, exact: bool
    ) -> None:
        self._dataset = dataset
        self._transform = transform
        self._exact = exact

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        dataset, columns = self._dataset, self._dataset.contents.columns
        (place,) = dataset.places(np.array([number]))
        decoder = decoder_for(columns, exact=self._exact)
        sample = {
            c.name: dataset.numbers(c.name, [place]).tolist()[0]
            if c.is_number
            else value_of(c, memoryview(dataset.payload(c.name, place)), decoder)
            for c in columns
        }
        return sample if self._transform is None else self._transform(sample)


class DatasetBatches:
    """Batches of any map-style data set."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None, clock: Clock, faults: Faults) -> None:
        self._dataset = dataset
        self._collate = collate
        self._clock = clock
        self._faults = faults

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch as torch's `DataLoader` does."""
        made = []
        with self._clock.batch() as lap:
            for number in ids.tolist():
                try:
                    made.append(self._dataset[number])
                except Exception as error:
                    if not self._faults.skip:
                        raise
                    self._faults.met(f"sample {number}", error)
            lap.mark("transform", len(ids))
            batch = collated(made, len(ids), self._collate)
            lap.mark("collate", len(ids))
        return batch


class TokenBatches:
    """Batches of windows of tokens, gathered in one go."""

    def __init__(self, dataset: TokenDataset, clock: Clock) -> None:
        self._dataset = dataset
        self._clock = clock

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch, of shape [samples, length + 1]."""
        import torch

        with self._clock.batch() as lap:
            batch = torch.from_numpy(self._dataset.batch(ids))
            lap.mark("read", len(ids))
        return batch


def decoder_for(columns: Sequence[Column], *, exact: bool) -> Decoder | None:
    """Return a decoder where there are pictures."""
    return Decoder(exact=exact) if any(column.kind == "image" for column in columns) else None


def value_of(column: Column, data: memoryview, decoder: Decoder | None) -> Any:
    """Return what bytes of a column stand for: pixels, an array, text, or themselves."""
    if column.kind == "image":
        assert decoder is not None  # there is a column of pictures
        return decoder.whole(data).copy()
    if column.kind == "array":
        return np.load(io.BytesIO(data), allow_pickle=False)
    return bytes(data).decode() if column.kind == "text" else bytes(data)
