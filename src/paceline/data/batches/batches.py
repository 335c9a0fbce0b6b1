"""Batches by the numbers of their samples. One thread makes a batch, each column straight into one array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batch_context import BatchContext
from paceline.data.batches.faults import Faults, collated, named, tensor_of
from paceline.data.batches.own_generators import own_generators
from paceline.data.batches.sample_seeding import at_once, batch_getter, own_draws
from paceline.data.format.model import KEY, Column
from paceline.data.reading.pictures import decoder_for, value_of
from paceline.data.reading.sharded import SamplePlace, ShardedDataset, missing_of, sample_keys, sample_of
from paceline.data.reading.stages import StageClock
from paceline.data.reading.token_dataset import TokenDataset

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
        context: BatchContext,
        columns: Sequence[Column],
        transform: Callable[[Mapping[str, Any]], Any] | None,
        collate: Callable[[list[Any]], Any] | None,
        *,
        exact: bool,
        draws: bool,
    ) -> None:
        """Prepare making batches.

        Args:
            context: What batches are made of.
            columns: What samples have.
            transform: The user's function of a sample.
            collate: The user's function of a list of samples.
            exact: Whether pictures are decoded as PIL does.
            draws: Whether the function may draw random numbers, from the generators of this process.
        """
        self._context = context
        self._draws = draws and transform is not None
        self._generators = own_generators(transform) if self._draws else []
        self._columns = list(columns)
        self._transform = transform
        self._collate = collate
        self._decoder = decoder_for(self._columns, exact=exact)

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch as `torch.utils.data.default_collate` does, or as the user's function does."""
        made: list[Any] = []
        dataset = self._context.dataset
        places = dataset.places(ids)
        columns = {column.name: self._column(column, ids, places) for column in self._columns}
        seeds = (self._context.seed, epoch) if self._draws else None
        with self._context.clock.batch() as lap, own_draws(seeds, self._generators) as drawing:
            for number, place in enumerate(places):
                try:
                    sample = {c.name: self._value(c, place, columns[c.name][number]) for c in self._columns}
                    lap.mark("decode")
                    drawing(int(ids[number]))
                    made.append(sample if self._transform is None else self._transform(sample))
                    lap.mark("transform")
                except Exception as error:
                    self._context.faults.met_in(dataset.name(place), error)
            batch = collated(made, len(ids), self._collate or self._by_column)
            lap.mark("collate", len(ids))
        return batch

    def _by_column(self, made: list[Any]) -> Any:
        """Put samples together as torch does; JSON, and a column that some samples do not have, become a list."""
        optional = [column.name for column in self._columns if column.optional or column.kind == "json"]
        if self._transform is not None:
            return collated(made, len(made), None)
        values = {column.name: [one[column.name] for one in made] for column in self._columns}
        return {name: own if name in optional else tensor_of(name, own) for name, own in values.items()}

    def _column(self, column: Column, ids: Numbers, places: Sequence[SamplePlace]) -> Sequence[Any]:
        dataset, found = self._context.dataset, list[Any]()
        if column.is_number:
            found = dataset.numbers(column.name, places).tolist()
        elif column.name == KEY:
            return sample_keys(dataset, places)
        else:
            found = list(self._context.payloads(column.name, ids, places))
        missing = missing_of(dataset, column, places)
        return [None if gone else one for one, gone in zip(found, missing, strict=True)]

    def _value(self, column: Column, place: SamplePlace, kept: Any) -> Any:
        if column.is_number or column.name == KEY or kept is None:
            return kept
        return value_of(column, self._context.checked(column.name, place, kept), self._decoder)


class ShardedSamples:
    """Samples of a sharded data set one by one, for worker processes."""

    def __init__(
        self,
        dataset: ShardedDataset,
        columns: Sequence[Column],
        transform: Callable[[Mapping[str, Any]], Any] | None,
        *,
        exact: bool,
    ) -> None:
        self._dataset = dataset
        self._columns = columns
        self._transform = transform
        self._exact = exact

    def __len__(self) -> int:
        return len(self._dataset)

    def name(self, number: int) -> str:
        """Return what a sample is called in a message."""
        return self._dataset.name(self._dataset.places(np.array([number]))[0])

    def __getitem__(self, number: int) -> Any:
        try:
            sample = sample_of(self._dataset, number, self._columns, exact=self._exact)
            return sample if self._transform is None else self._transform(sample)
        except Exception as error:
            raise named(self.name(number), error)  # noqa: B904 - it is chained, or the same


class DatasetBatches:
    """Batches of any map-style data set."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any] | None,
        clock: StageClock,
        faults: Faults,
        seed: int | None,
    ) -> None:
        """Prepare making batches.

        Args:
            dataset: The user's own.
            collate: The user's function of a list of samples.
            clock: Adds up what it takes.
            faults: Counts bad samples.
            seed: Of what samples draw from the generators of this process; None: they draw nothing.
        """
        self._seed = seed
        self._generators = own_generators(dataset) if seed is not None else []
        self._dataset = dataset
        self._getter = batch_getter(dataset)
        self._collate = collate
        self._clock = clock
        self._faults = faults

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch as torch's `DataLoader` does."""
        made = []
        seeds = None if self._seed is None else (self._seed, epoch)
        with self._clock.batch() as lap, own_draws(seeds, self._generators) as drawing:
            drawing(int(ids[0]))
            whole = at_once(self._getter, ids.tolist(), skip=self._faults.skip)
            for number in ids.tolist() if whole is None else ():
                drawing(number)
                try:
                    made.append(self._dataset[number])
                except Exception as error:
                    if not self._faults.skip:
                        raise
                    self._faults.met(f"sample {number}", error)
            lap.mark("transform", len(ids))
            batch = collated(made if whole is None else whole, len(ids), self._collate)
            lap.mark("collate", len(ids))
        return batch


class TokenBatches:
    """Batches of windows of tokens, gathered in one go."""

    def __init__(self, dataset: TokenDataset, clock: StageClock) -> None:
        self._dataset = dataset
        self._clock = clock

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch, of shape [samples, length + 1]."""
        import torch

        with self._clock.batch() as lap:
            batch = torch.from_numpy(self._dataset.batch(ids))
            lap.mark("read", len(ids))
        return batch
