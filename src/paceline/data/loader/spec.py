"""The specification of a loader: the dataset and its transforms, checked before reading, and the maker of batches."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.batches.batch_context import ArrayPool, BatchContext, DatasetContext
from paceline.data.batches.batches import DatasetBatches, Maker, SampleBatches, ShardedSamples, TokenBatches
from paceline.data.batches.file_batches import FileCrops, FileSamples, columns_together
from paceline.data.batches.own_generators import own_generators
from paceline.data.batches.picture_batches import PictureBatches
from paceline.data.batches.replacements import LostSampleReplacer
from paceline.data.format.image_modes import is_cropped
from paceline.data.format.model import KEY, Column
from paceline.data.loader.mix import Mix
from paceline.data.loader.processes import Manner, manner_of
from paceline.data.loader.selection import Selection, block_starts, digest_of, selection_of
from paceline.data.loader.settings import Settings
from paceline.data.order.mixed import MixedOrder
from paceline.data.order.order import EpochOrder, SelectedOrder, Shuffle
from paceline.data.order.position import Position
from paceline.data.reading.cache_offer import CacheOffer, cache_offer
from paceline.data.reading.crops import Crop
from paceline.data.reading.decoded_cache import DecodedCache, cache_in
from paceline.data.reading.file_dataset import FileDataset
from paceline.data.reading.pictures import libraries
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.stages import Spent
from paceline.data.reading.token_dataset import TokenDataset

Numbers = NDArray[np.int64]
_log = logging.getLogger("paceline.data")
_TRIED = 64  # samples that are made to choose threads or processes


@dataclass(frozen=True, kw_only=True)
class LoaderSpec:
    """A dataset, and how batches are made from its samples."""

    data: Any  # a ShardedDataset, TokenDataset, FileDataset, or the user's own Dataset
    numbers: Numbers | None  # the samples of shards, tokens or files that are read; None: all
    transform: Crop | Callable[[Mapping[str, Any]], Any] | None
    collate: Callable[[list[Any]], Any] | None
    batch_transform: Callable[[Any, Any], Any] | None
    exact: bool
    only: Sequence[str] | None = None  # the names of columns to read; None: all
    mode: str | None = None  # the mode of images; None: the mode of their column
    mix: Mix | None = None  # `data` has its datasets one after the other

    @property
    def digest(self) -> str:
        """A digest that identifies the dataset in a state; empty for the user's own dataset."""
        mixed = "" if self.mix is None else self.mix.digest
        if isinstance(self.data, FileDataset):
            return hashlib.sha256((self.data.digest + digest_of(self.numbers)).encode()).hexdigest()[:16]
        if not isinstance(self.data, ShardedDataset | TokenDataset):
            return mixed[:16]
        shards = [(one.file, getattr(one, "samples", 0), one.crc32) for one in self.data.contents.shards]
        told = repr((shards, getattr(self.data, "length", None))) + digest_of(self.numbers) + mixed
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def is_sharded(self) -> bool:
        """Whether the dataset is sharded."""
        return isinstance(self.data, ShardedDataset)

    @property
    def is_shared(self) -> bool:
        """Whether the processes of this machine share a disk cache of the bytes that they fetch from a store."""
        return self.is_sharded and self.data.remote is not None and self.data.remote.cache is not None

    @property
    def is_plain(self) -> bool:
        """Whether batches are so cheap to make that threads would save no time."""
        return isinstance(self.data, TokenDataset) and self.collate is None

    @property
    def crop(self) -> Crop | None:
        """The crop of images, if the transform is one."""
        return self.transform if isinstance(self.transform, Crop) else None

    @property
    def function(self) -> Callable[[Mapping[str, Any]], Any] | None:
        """The user's function of a sample, if the transform is one."""
        return self.transform if not isinstance(self.transform, Crop) else None

    @property
    def columns(self) -> list[Column]:
        """The columns of shards or files to read, in order, with their image modes.

        Raises:
            UsageError: A requested column does not exist.
        """
        own = self.data.contents.columns if self.is_sharded else self.data.columns
        there = {column.name: self._in_mode(column) for column in own}
        if self.only is None:
            return list(there.values())
        there[KEY] = Column(name=KEY, kind="text")
        missing = [name for name in self.only if name not in there]
        if missing or isinstance(self.only, str):
            raise UsageError(f"columns={self.only!r}: give a list of columns; there are {', '.join(there)}")
        return [there[name] for name in self.only]

    def _in_mode(self, column: Column) -> Column:
        return replace(column, mode=self.mode) if self.mode is not None and column.kind == "image" else column

    @property
    def cropped(self) -> Column | None:
        """The column to crop: the first image column that a crop can convert without loss; None without a crop."""
        pictures = [column for column in self.columns if column.kind == "image"] if self.crop is not None else []
        return next((column for column in pictures if is_cropped(column.mode)), None)

    def samples(self) -> Any:
        """Return a map-style dataset whose samples have passed through the user's function."""
        if isinstance(self.data, FileDataset):
            return self._file_samples(self.columns)
        if not self.is_sharded:
            return self.data
        return ShardedSamples(self.data, self.columns, self.function, exact=self.exact)

    def _file_samples(self, columns: Sequence[Column]) -> FileSamples:
        return FileSamples(self.data, columns, self.function, exact=self.exact, checks_mode=self.mode is None)

    def order(self, at: Position) -> EpochOrder | MixedOrder:
        """Return the order of samples in the epoch of a position.

        Raises:
            EnvironmentFault: A file of a `FileDataset` was changed since its samples were listed.
        """
        if isinstance(self.data, FileDataset):
            self.data.check_unchanged()
        shuffle = Shuffle(seed=at.seed, window=at.window, lanes=at.lanes) if at.shuffle else None
        if self.mix is not None:
            return self.mix.order(shuffle, at.seed, at.epoch)
        if self.numbers is not None:
            return SelectedOrder(block_starts(self.data), self.numbers, shuffle, at.epoch)
        return EpochOrder(block_starts(self.data), at.samples, shuffle, at.epoch)

    @property
    def replacements(self) -> int | Numbers:
        """The samples that may replace bad ones: the number of samples if all may, else the selected sample numbers."""
        return len(self.data) if self.numbers is None else self.numbers

    def maker(self, context: BatchContext, arrays: ArrayPool, *, alone: bool) -> Maker:
        """Return a maker of batches of shards.

        Args:
            context: The dataset, its blocks in memory, and the caches.
            arrays: The pool of batch arrays.
            alone: Whether the training's own thread makes batches.
        """
        column, columns = self.cropped, self.columns
        if self.crop is None or column is None:
            made = SampleBatches(context, columns, self.function, self.collate, exact=self.exact, draws=alone)
            return LostSampleReplacer(made, context)
        others = [one for one in columns if one != column]
        return LostSampleReplacer(
            PictureBatches(context, column.name, others, self.crop, arrays, exact=self.exact), context
        )

    def cache(self, where: str | None, most_bytes: int | None) -> DecodedCache | None:
        """Return the cache of decoded images, or None if `where` is None.

        Args:
            where: "ram" or a folder.
            most_bytes: The limit; None for 40% of the free bytes.

        Raises:
            UsageError: There is no crop, which the cache needs.
            EnvironmentFault: The folder cannot be used.
        """
        if where is None:
            return None
        if isinstance(self.data, FileDataset):
            raise UsageError(
                f"decoded_cache= is for shards; `paceline data convert {self.data.address} SHARDS` makes them"
            )
        crop, cropped = self.crop, self.cropped
        if crop is None or cropped is None:
            raise UsageError("decoded_cache= needs a crop: give RandomResizedCrop or CenterCrop as transform=")
        column = cropped.name
        kind = f"{column}, exact {self.exact}, " + ("whole" if crop.draws else repr(crop))

        def shapes(shard: int) -> NDArray[np.int64]:
            arrays = self.data.index(shard).arrays
            high, wide = (arrays[f"{column}.{key}"].astype(np.int64) for key in ("height", "width"))
            return np.stack([high, wide], 1) if crop.draws else np.full((len(high), 2), crop.size, np.int64)

        return cache_in(where, most_bytes, self.data, kind, shapes)

    def offer(self, spent: Mapping[str, Spent]) -> CacheOffer | None:
        """Return the size and saving of a cache of decoded images, or None if none would save time."""
        if self.crop is None or self.cropped is None or not self.is_sharded:
            return None
        return cache_offer(self.data, self.cropped.name, None if self.crop.draws else self.crop.size, spent)

    def maker_of_own(self, context: DatasetContext, *, alone: bool) -> Maker:
        """Return a maker of batches of tokens, of files in their own format, or of the user's own dataset.

        Args:
            context: The pool of arrays, the clock, the fault counter and the seed.
            alone: Whether the training thread makes batches; only there, samples may draw random numbers.
        """
        if self.is_plain:
            return TokenBatches(self.data, context.clock)
        cropped = self.cropped if has_columns(self.data) else None
        if self.crop is not None and cropped is not None:
            beside = self._file_samples([column for column in self.columns if column != cropped])
            return FileCrops(context, beside, cropped, self.crop)
        seed = context.seed if alone else None
        return DatasetBatches(self.samples(), collate_of(self), context.clock, context.faults, seed)


def spec_of(
    data: Any,
    transform: Crop | Callable[[Mapping[str, Any]], Any] | None,
    collate: Callable[[list[Any]], Any] | None,
    own: Settings,
) -> LoaderSpec:
    """Return the checked specification of a loader.

    Args:
        data: The dataset, a subset, or a `Mix`.
        transform: A crop, or a function of a sample.
        collate: A function of a list of samples.
        own: The settings of the loader.

    Raises:
        UsageError: The arguments cannot be combined with each other or with the dataset.
        EnvironmentFault: A package for decoding images is not installed.
    """
    mix = data if isinstance(data, Mix) else None
    selection = selection_of(data) if mix is None else Selection(mix.data, mix.numbers)
    return checked(
        LoaderSpec(
            data=selection.data,
            numbers=selection.numbers,
            transform=transform,
            collate=collate,
            batch_transform=own.batch_transform,
            exact=own.exact,
            only=own.columns,
            mode=own.image_mode,
            mix=mix,
        )
    )


def checked(spec: LoaderSpec) -> LoaderSpec:
    """Return the specification unchanged after its checks.

    Raises:
        UsageError: The arguments cannot be combined with each other or with the dataset.
        EnvironmentFault: A package for decoding images is not installed.
    """
    if not has_columns(spec.data):
        if spec.transform is not None or spec.only is not None:
            raise UsageError(
                "transform= and columns= are for shards and FileDataset; with your own Dataset, transform samples in "
                "its __getitem__"
            )
        if not hasattr(spec.data, "__len__") or not hasattr(spec.data, "__getitem__"):
            raise UsageError(
                f"{type(spec.data).__name__} has no __len__ and __getitem__, which shuffling needs; "
                "convert it to shards, or use DataLoader"
            )
        return spec
    images = [column for column in spec.columns if column.kind == "image"]
    if images:
        libraries()
    for column in images:
        for text in column.notes:
            _log.warning("%s", text)
    if spec.crop is not None:
        _check_crop(spec, images)
    if spec.crop is not None and spec.collate is not None:
        raise UsageError("a crop makes whole batches; leave collate_fn= out, or give a function as transform=")
    return spec


def _check_crop(spec: LoaderSpec, images: Sequence[Column]) -> None:
    """Check that a crop loses no values, and log a warning if it drops the alpha channel.

    Raises:
        UsageError: There is no image column, or a crop would lose values of its images.
    """
    if not images:
        raise UsageError(f"{spec.data.address} has no image column; its columns are {columns_in_words(spec.columns)}")
    if spec.cropped is None:
        one = images[0]
        raise UsageError(
            f"a crop makes 8-bit RGB, and the images of column {one.name} have mode {one.mode}, whose values would be "
            f"lost; give a function as transform=, which gets sample[{one.name!r}] as an array of this mode, or "
            "image_mode='RGB' for the colours of a palette or of CMYK"
        )
    if spec.cropped.mode in ("LA", "RGBA"):
        _log.warning(
            "the crop drops the alpha channel of column %s; a function as transform= gets it", spec.cropped.name
        )


def has_columns(data: Any) -> bool:
    """Return whether samples are dicts by column, to which functions and crops can be applied."""
    return isinstance(data, ShardedDataset | FileDataset)


def collate_of(spec: LoaderSpec) -> Callable[[list[Any]], Any] | None:
    """Return the function that makes a batch from a list of samples, or None for torch's `default_collate`."""
    by_column = isinstance(spec.data, FileDataset) and spec.transform is None and spec.collate is None
    return columns_together if by_column else spec.collate


def processes_for(spec: LoaderSpec, own: Settings, cores: int) -> int:
    """Return the number of worker processes that replace threads; 0 without code of the user.

    A user's dataset can keep open files and other state, which threads would share, so it gets threads only if
    `threads=` is set. Functions of samples get threads unless they hold the GIL. Samples that draw random numbers never
    get threads, which share the generators with the training: a warning says so if `threads=` is set.

    Args:
        spec: The specification.
        own: The settings.
        cores: The number of cores that this rank may use.
    """
    if isinstance(spec.data, TokenDataset) or (has_columns(spec.data) and spec.function is None):
        return 0
    if own.processes is not None or own.threads == 0:
        return own.processes or 0
    processes = own.threads or cores
    if not has_columns(spec.data) and own.threads is None:
        return processes
    manner = _manner(spec.samples())
    if not manner.draws:
        return processes if manner.holds and own.threads is None else 0
    if own.threads is not None:
        _log.warning(
            "threads=%d: %d processes make the samples instead of threads, because the samples draw random numbers (or "
            "did not come within 30 s, when they were tried): with threads, the numbers would depend on timing, and "
            "change those of the training. Give processes=%d, or seed a generator of its own for each sample",
            own.threads, processes, processes,
        )  # fmt: skip
    return processes


def _manner(samples: Any) -> Manner:
    if own_generators(samples):
        return Manner(draws=True, holds=False)
    return manner_of(samples.__getitem__, np.arange(min(len(samples), _TRIED), dtype=np.int64))


def picture_column(dataset: ShardedDataset) -> str | None:
    """Return the name of the first image column, or None without one."""
    return next((column.name for column in dataset.contents.columns if column.kind == "image"), None)


def can_crop(dataset: ShardedDataset) -> bool:
    """Return whether a crop works for every sample: its column can become 8-bit RGB without loss and has no gaps."""
    images = [column for column in dataset.contents.columns if column.kind == "image" and is_cropped(column.mode)]
    return bool(images) and not images[0].optional


def columns_in_words(columns: Sequence[Column]) -> str:
    """Return the names and kinds of columns, for messages."""
    return ", ".join(f"{column.name} ({column.kind})" for column in columns)
