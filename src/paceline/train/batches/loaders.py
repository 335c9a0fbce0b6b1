"""Splits a loader over the ranks: each rank gets its part of every batch that one process would see, in the same order.

Each rank draws the same order of samples with the random numbers of rank 0 and reads only its part: of a batch
of B samples over n parts, part p has the samples p B / n to (p + 1) B / n; with micro-batches, that part of
each micro-batch of one process. The global batch and each of its micro-batches are therefore the same on any
layout. If a `collate_fn` or `__getitems__` gets all samples of a batch, or samples have no numbers (`whole.py`), each
rank reads whole batches instead, and selects its samples. A `paceline.data.Loader` distributes each batch sample by
sample. Checkpoints keep the positions of loaders.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train.batch_samples import like
from paceline.train.batches.order import (
    BatchReading,
    Dealt,
    Order,
    RankBatchSampler,
    ResumableLoader,
    WholeBatchSampler,
    why_not,
)
from paceline.train.batches.whole import WholeBatches
from paceline.train.checkpoints.loader_positions import LoaderPositions
from paceline.train.comparison.loss_check import OwnBatchCheck
from paceline.train.parallel import cp, cp_batches
from paceline.train.ranks import agreement, random_states
from paceline.train.ranks.world import World
from paceline.train.unmodified.reading.datasets import Digests, class_with_getitems
from paceline.train.unmodified.reading.read_side_effects import (
    CHECKED_BATCHES,
    RANDOM_GENERATOR,
    changed_names,
    reachable_state,
    reread,
)

if TYPE_CHECKING:
    from paceline.data import Loader

_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "in_order",
)
_STACKS = ("transformers.data.data_collator.default_data_collator",)  # functions that only stack samples


def split(  # noqa: PLR0913
    loader: Any,
    world: World,
    positions: LoaderPositions,
    micro_batches: int,
    of_batch: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    *,
    dealt: bool = False,
    checked: bool = False,
) -> OnDevice:
    """Return a loader of this rank's part of each batch, on its device.

    Args:
        loader: torch's `DataLoader`, or `paceline.data.Loader`. If it was split before, its position stays.
        world: The ranks.
        positions: The positions of all loaders.
        micro_batches: The number of micro-batches into which each rank splits its batch.
        of_batch: Returns a context in which the program processes a batch.
        dealt: Whether each rank takes the next free part whenever it requests one; `DataLoader` only.
        checked: Whether a dataset is refused if a sample depends on previously read samples; `DataLoader` only.

    Raises:
        UsageError: The loader cannot be split.
    """
    from torch.utils.data import DataLoader

    from paceline.data import Loader

    def create() -> OurPart | ResumableLoader | WholeBatches:
        if isinstance(loader, Loader):
            return OurPart(loader, _part_of_ours(loader, world, micro_batches))
        if _has_no_numbers(loader) and not dealt:
            return WholeBatches(loader, world, micro_batches)
        return _part_of_torchs(loader, world, micro_batches, Dealt if dealt else RankBatchSampler, checked)

    options = _options_of(loader) if isinstance(loader, DataLoader) else None
    return OnDevice(positions.part_of(loader, options, create), world, loader, of_batch)


def _has_no_numbers(loader: Any) -> bool:
    """Return whether an iterable yields batches whose samples have no numbers, so that only whole batches can be read.

    A data set yields samples. A list is refused, because it would count as a new loader in each epoch.
    """
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    if isinstance(loader, DataLoader):
        return isinstance(loader.dataset, IterableDataset) and loader.batch_size is not None
    others = (str, bytes, Mapping, list, tuple, set, Dataset)
    return isinstance(loader, Iterable) and not isinstance(loader, others) and not hasattr(loader, "ndim")


def _part_of_ours(loader: Loader, world: World, micro_batches: int) -> Loader:
    from paceline.data.loader.loader import part_of, settings_of

    ranks, whole = world.layout.samples, settings_of(loader)["ends"] != "even"
    if settings_of(loader)["max_tokens"] is not None and ranks * micro_batches > 1:
        raise UsageError(
            "the engine splits batches of batch_size= samples, and not those of max_tokens=; give batch_size="
        )
    _check_sizes(loader.batch_size, 0 if whole else len(loader.dataset), ranks, micro_batches)
    return part_of(loader, world.sample_part, ranks) if world.mesh is not None else loader


def _part_of_torchs(
    loader: Any, world: World, micro_batches: int, kind: type[RankBatchSampler], checked: bool
) -> ResumableLoader:
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"engine.loader() takes torch's DataLoader, paceline.data.Loader, and generators of whole batches, and not "
            f"{type(loader).__name__}; of a list of batches, pass a generator: (batch for batch in batches)"
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise UsageError(
            f"the DataLoader of {type(loader.dataset).__name__} has no batch_size, so its batches cannot be split over "
            "ranks; set batch_size, or pass a generator of whole batches to engine.loader()"
        )
    if isinstance(loader.sampler, DistributedSampler):
        raise UsageError(
            "the loader has a DistributedSampler: its samples would be split twice; leave the sampler out and give "
            "shuffle=True and the batch_size of all ranks together"
        )
    if loader.batch_size is not None:  # otherwise the user's batch sampler; its batches are checked when they come
        samples = 0 if loader.drop_last else len(loader.sampler)
        _check_sizes(loader.batch_size, samples, world.layout.samples, micro_batches)
    order = Order(loader.batch_sampler, world)
    is_checked = checked and kind is RankBatchSampler and world.layout.samples > 1
    why_whole = why_whole_batches(loader) if is_checked else None
    if why_whole is not None:
        if world.rank == 0:
            _tell_whole_batches(world.layout, type(loader.dataset).__name__, why_whole)
        kind = WholeBatchSampler
    batches = kind(order, world, micro_batches)
    own = _again(loader, batches)
    return ResumableLoader(
        own,
        order,
        kind.why or why_not(loader),
        world,
        compared=kind is not Dealt,
        reading=_reading_of(own, batches, world, checked=checked),
        options=_options_of(loader),
    )


def _reading_of(loader: Any, batches: RankBatchSampler, world: World, *, checked: bool) -> BatchReading:
    """Return how the batches of a `DataLoader` over this rank's batches are read."""
    if not checked or world.layout.samples == 1:
        return BatchReading()
    tables = TableComparison(loader, world)
    if isinstance(batches, WholeBatchSampler):
        of_batch = nullcontext if loader.num_workers else batches.same_draws  # workers get a seed at the start
        return BatchReading(tables.check, batches.same_draws, of_batch, batches.select_parts)
    check, reads = SideEffectCheck(loader, world), itertools.count(1)

    @contextmanager
    def of_batch_of_part() -> Iterator[None]:
        is_second = next(reads) == 2 and not loader.num_workers  # in the first, a sampler may draw the order
        before = (world.drawn(), random_states.of_host()) if is_second else None
        with tables.watched_read(), check.checked_read():
            yield
        if is_second and world.rank == 0 and (world.drawn(), random_states.of_host()) != before:
            _tell_draws(world.layout, type(loader.dataset).__name__)

    return BatchReading(tables.check, of_batch=of_batch_of_part)


def why_whole_batches(loader: Any) -> str | None:
    """Return why each rank must read whole batches of a `DataLoader`; None if it may read only its part.

    A function that gets all samples of a batch can pad them to the longest one or mix them. A few batches cannot show
    that it does not, so only functions that are known to stack samples get a part.
    """
    from torch.utils.data import default_collate

    if (name := class_with_getitems(loader.dataset)) is not None:
        return f"{name}.__getitems__ gets all samples of a batch"
    collate = loader.collate_fn
    name = getattr(collate, "__qualname__", type(collate).__qualname__)
    if collate is default_collate or f"{getattr(collate, '__module__', '')}.{name}" in _STACKS:
        return None
    return f"its collate_fn {name} gets all samples of a batch"


@cache  # once for each data set and reason
def _tell_whole_batches(layout: Layout, data: str, why: str) -> None:
    sys.stderr.write(
        f"paceline: layout {layout}: each rank reads whole batches of {data}, because {why}; it reads "
        f"{layout.samples} times the samples of its part. If no sample of a batch depends on the others, set "
        "checks.samples = false, and each rank reads only its part\n"
    )


@cache  # once for each data set
def _tell_draws(layout: Layout, data: str) -> None:
    sys.stderr.write(
        f"paceline: layout {layout}: the samples of {data} draw random numbers. Each rank reads only its samples, and "
        "draws other numbers for them than one process; the draws of a collate_fn are those of one process\n"
    )


def _check_sizes(size: int, samples: int, ranks: int, micro_batches: int) -> None:
    """Check that all batches can be split into equal parts.

    Args:
        size: The number of samples in a batch.
        samples: The number of samples in all batches; 0 if all batches are complete.
        ranks: The number of ranks with different samples.
        micro_batches: The number of micro-batches of each rank.
    """
    parts = ranks * micro_batches
    if size % parts:
        raise UsageError(
            f"batch_size={size} is not a multiple of {parts} ({ranks} ranks with other samples x {micro_batches} "
            f"micro-batches); take {max(1, round(size / parts)) * parts}"
        )
    if samples % size % parts:
        raise UsageError(
            f"the last batch has {samples % size} of {size} samples, which is not a multiple of {parts}; "
            'say DataLoader(drop_last=True), or Loader(ends="drop")'
        )


def _again(loader: Any, batches: Any) -> Any:
    """Return a copy of a loader with other batches."""
    from torch.utils.data import DataLoader

    options = _options_of(loader)
    if not loader.num_workers:
        del options["prefetch_factor"]
    return DataLoader(loader.dataset, batch_sampler=batches, **options)


def _options_of(loader: Any) -> dict[str, Any]:
    return {name: getattr(loader, name, None) for name in _OPTIONS}


class OnDevice:
    """A loader that moves its batches to the device; with cp it yields this rank's part of their sequences."""

    def __init__(
        self, loader: Any, world: World, given: Any, of_batch: Callable[[Any], AbstractContextManager[Any]]
    ) -> None:
        """Wrap a loader.

        Args:
            loader: Yields this rank's part of each batch.
            world: The ranks.
            given: The program's loader, which is kept alive.
            of_batch: Returns a context in which the program processes a batch.
        """
        self.loader = loader
        self._of_batch = of_batch
        self._world = world
        self._given = given

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        world = self._world
        OwnBatchCheck.note_split()
        for batch in self.loader:
            self._check_same(batch)
            own = cp.part_of(batch, world.position("cp"), world.layout.cp) if world.layout.cp > 1 else batch
            own = moved(own, world.device)
            if world.layout.cp > 1:
                cp_batches.note_batch(own)
            with self._of_batch(own):
                yield own

    def _check_same(self, batch: Any) -> None:
        """Check that ranks with parts of the same model or the same sequences got the same samples."""
        groups = self._world.same_samples
        if groups and not agreement.is_same(agreement.digest(batch), groups):
            raise UsageError(
                f"layout {self._world.layout}: ranks that need the same samples got different ones. The data set uses "
                "its own random generator (use the same seed on all ranks), only some ranks of the program drew random "
                "numbers, or files differ between ranks"
            )


class OurPart:
    """This rank's part of a `paceline.data.Loader`, with its position.

    Args:
        loader: The program's loader.
        part: A loader of this rank's part of each batch; the loader itself on one process.
    """

    options = None

    def __init__(self, loader: Loader, part: Loader) -> None:
        self._given = weakref.ref(loader)
        self._own = None if part is loader else part
        self._state, self._epoch = part.state_dict(), loader.state_dict()["epoch"]
        self.position, self.was_read = self, False

    @property
    def _part(self) -> Any:
        """The loader of this rank's part; None if the program no longer has it."""
        return self._given() if self._own is None else self._own

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[Any]:
        part, given, self.was_read = self._part, self._given(), True
        if self._own is not None and given is not None and given.state_dict()["epoch"] != self._epoch:
            self._epoch = given.state_dict()["epoch"]  # from `set_epoch`
            part.set_epoch(self._epoch)
        for batch in part:
            self._state = part.state_dict()
            yield batch
        self._state = part.state_dict()

    def state(self) -> dict[str, Any]:
        """Return the position in a form that JSON can store."""
        part = self._part
        return dict(self._state if part is None else part.state_dict())

    def follow(self, earlier: Any) -> None:
        """Do nothing: the loader itself has all that its position needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._part.load_state_dict(state)


class SideEffectCheck:
    """Refuses a dataset in which a sample depends on the samples that were read before, such as a counter of samples.

    With several sample parts, each rank reads only its part of a batch, so it would get other samples than one process.
    The first two batches of a loader without workers are checked. If reading them changes the dataset, one sample is
    read again after other samples, and must be equal. Random generators may change, because each sample part has its
    own random stream. With workers nothing is checked, because each worker has its own copy of the dataset.

    Args:
        loader: A `DataLoader` with a `RankBatchSampler`.
        world: The ranks.
    """

    def __init__(self, loader: Any, world: World) -> None:
        self._dataset, self._layout, self._sampler = loader.dataset, world.layout, loader.batch_sampler
        self._left = 0 if loader.num_workers or world.layout.samples == 1 else CHECKED_BATCHES

    @contextmanager
    def checked_read(self) -> Iterator[None]:
        """Check the batch that is read inside the context.

        Raises:
            UsageError: Reading the batch changed the dataset, and reading a sample again gave another result.
        """
        if not self._left:
            yield
            return
        import torch

        before = reachable_state(torch, self._dataset)
        yield
        found = changed_names(before, reachable_state(torch, self._dataset), is_first=self._left == CHECKED_BATCHES)
        self._left -= 1
        name = next((name for name in found if name != RANDOM_GENERATOR), None)
        if name is None:
            return
        self._left = 0
        if reread(torch, self._dataset, self._sampler.last_indices) != "equal":
            raise UsageError(
                f"reading a sample changes {name}, and later samples depend on it. With {self._layout}, each rank "
                "reads only its part of a batch, so it would get other samples than one process; make samples "
                "independent of each other, or train without this check: set checks.samples = false"
            )


class TableComparison:
    """Refuses a dataset whose tensors and arrays differ between ranks when an epoch begins.

    A loop can write into a dataset, such as the labels or the weights of samples. A rank knows its own samples only,
    so the ranks would then train on other data than one process. A dataset that changes its own arrays when it is read,
    such as a cache, is not compared.

    Args:
        loader: A `DataLoader`.
        world: The ranks.
    """

    def __init__(self, loader: Any, world: World) -> None:
        self._dataset, self._world = loader.dataset, world
        self._left = 0 if loader.num_workers else CHECKED_BATCHES
        self._is_cache = False

    def _digests(self) -> list[tuple[str, int]]:
        import torch

        digests = Digests(torch, skip_caches=True, arrays_only=True)
        return list(digests.of_parts(type(self._dataset).__name__, self._dataset))

    @contextmanager
    def watched_read(self) -> Iterator[None]:
        """Note whether reading a batch inside the context changes an array; the first two batches are watched."""
        if not self._left:
            yield
            return
        before = self._digests()
        yield
        self._left -= 1
        self._is_cache = self._is_cache or self._digests() != before

    def check(self) -> None:
        """Compare the arrays between ranks; a collective.

        Raises:
            UsageError: They differ.
        """
        import torch

        own = self._digests()
        number = agreement.digest(own)
        is_cache, most, least = agreement.largest([self._is_cache, number, -number], self._world.everyone)
        if is_cache or most == -least:
            return
        every: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(every, own)
        name = next((name for name, digest in own if any((name, digest) not in each for each in every)), "its content")
        raise UsageError(
            f"{name} of the data set differs between ranks when an epoch begins: the program created it differently "
            "on each rank, or changed it from the samples of a rank. Seed what it draws, and exchange what it computes "
            "from samples before the epoch (torch.distributed.all_gather), so that all ranks have the same data"
        )


def moved(batch: Any, device: Any) -> Any:
    """Return a batch with its tensors, in tuples, lists and dicts, moved to a device."""
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return like(batch, [moved(value, device) for value in batch])
    return batch
