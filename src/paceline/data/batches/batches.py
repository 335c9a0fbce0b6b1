"""Makers of batches from sample numbers, one for each kind of dataset. One thread makes a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data.batches.batch_context import BatchContext
from paceline.data.batches.faults import Faults, as_runtime_error, collated, named, tensor_of
from paceline.data.batches.own_generators import own_generators
from paceline.data.batches.sample_seeding import at_once, batch_getter, own_draws
from paceline.data.format.model import KEY, Column
from paceline.data.reading.pictures import decoder_for, value_of
from paceline.data.reading.sharded import SamplePlace, ShardedDataset, missing_of, sample_keys, sample_of
from paceline.data.reading.stages import StageClock
from paceline.data.reading.token_dataset import TokenDataset

Numbers = NDArray[np.int64]


class Maker(Protocol):
    """Makes batches, in several threads at once."""

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch.

        Args:
            ids: The numbers of the samples.
            epoch: The epoch, from 0, for random numbers.

        Raises:
            DamagedData: A sample is damaged, and bad samples are not skipped.
            Skipped: All samples are bad.
        """


class SampleBatches:
    """Makes batches of a sharded dataset from whole samples, with the user's transform."""

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
        """Store the arguments, and create the decoder of images.

        Args:
            context: The dataset, its blocks in memory, and the caches.
            columns: The columns of the samples.
            transform: The user's function of a sample; None leaves samples unchanged.
            collate: The user's function of a list of samples; None collates by column, as torch does.
            exact: Whether images are decoded bit for bit as PIL does.
            draws: Whether the transform can draw from the global random generators, which are then seeded.
        """
        self._context = context
        self._draws = draws and transform is not None
        self._generators = own_generators(transform) if self._draws else []
        self._columns = list(columns)
        self._transform = transform
        self._collate = collate
        self._decoder = decoder_for(self._columns, exact=exact)

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch, collated by the user's function or as torch's `default_collate` does."""
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
        """Collate samples as torch does; JSON columns and optional columns become lists."""
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
    """A map-style dataset of the samples of a sharded dataset, for worker processes."""

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
        """Return the name of a sample for messages."""
        return self._dataset.name(self._dataset.places(np.array([number]))[0])

    def __getitem__(self, number: int) -> Any:
        try:
            sample = sample_of(self._dataset, number, self._columns, exact=self._exact)
            return sample if self._transform is None else self._transform(sample)
        except Exception as error:
            raise named(self.name(number), error)  # noqa: B904 - the error is chained, or the same


class DatasetBatches:
    """Makes batches of any map-style dataset."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any] | None,
        clock: StageClock,
        faults: Faults,
        seed: int | None,
    ) -> None:
        """Store the arguments, and search the dataset for random generators.

        Args:
            dataset: The user's dataset.
            collate: The user's function of a list of samples; None for torch's `default_collate`.
            clock: Sums the times of stages.
            faults: Counts bad samples.
            seed: The seed of random numbers that samples draw; None if they draw none.
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
                        raise as_runtime_error(f"sample {number}", error)  # noqa: B904 - the same, or chained
                    self._faults.met(f"sample {number}", error)
            lap.mark("transform", len(ids))
            batch = collated(made if whole is None else whole, len(ids), self._collate)
            lap.mark("collate", len(ids))
        return batch


class TokenBatches:
    """Makes batches of token windows by one array operation."""

    def __init__(self, dataset: TokenDataset, clock: StageClock) -> None:
        self._dataset = dataset
        self._clock = clock

    def make(self, ids: Numbers, epoch: int) -> Any:
        """Make a batch: a tensor of shape [samples, length + 1]."""
        import torch

        with self._clock.batch() as lap:
            batch = torch.from_numpy(self._dataset.batch(ids))
            lap.mark("read", len(ids))
        return batch
