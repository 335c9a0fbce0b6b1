"""Detect changes of a dataset that a recipe would hide from the loader.

A loader without workers sees each change of its dataset in the next batch; new workers see it in the next epoch;
persistent workers never see it. If a recipe changes a loader in this respect, the state of the dataset is compared at
batches 1, 2, 4, 8 and so on, and when an epoch begins. Workers that the recipe made persistent are restarted if the
dataset has changed since their start. A change within an epoch cannot be repaired: the setting is given up, and from
the next epoch on the loader has no workers and no threads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakKeyDictionary

from paceline.inprocess import hooks
from paceline.inprocess.settings import confirmation
from paceline.inprocess.settings.dataset_state import State, changed, in_words, state_of

Reads = Literal["live", "ahead", "epoch", "once"]  # at each batch, some batches ahead, at each epoch, only at the first


@dataclass
class _Followed:
    """A loader that reads its dataset at other times than without the recipe."""

    before: Reads
    now: Reads
    key: str  # the setting of the recipe
    first: State | None = None  # when the current workers started
    begun: State | None = None  # when the epoch began
    batches: int = 0  # in this epoch
    lost: bool = False
    volatile: set[str] = field(default_factory=set)  # attributes that change when a sample is loaded

    @property
    def within_epochs(self) -> bool:
        """Whether the recipe alters when the loader sees a change that the program makes within an epoch."""
        return self.before != self.now and not {self.before, self.now}.isdisjoint(("live", "ahead"))

    @property
    def across_epochs(self) -> bool:
        """Whether the recipe alters whether the loader sees a change that the program makes between epochs."""
        return self.before != self.now and "once" in (self.before, self.now)


_followed: WeakKeyDictionary[Any, _Followed] = WeakKeyDictionary()
_of_iterators: WeakKeyDictionary[Any, tuple[_Followed, Any]] = WeakKeyDictionary()  # with their loaders


def reads(workers: int, persistent: bool, threads: int = 0) -> Reads:
    """Return when a loader reads the content of its dataset."""
    if not workers:
        return "ahead" if threads else "live"
    return "once" if persistent else "epoch"


def follow(loader: Any, before: Reads, now: Reads, key: str) -> None:
    """Check the dataset of a loader for changes, if a recipe changes when the loader reads it.

    Args:
        loader: The new loader.
        before: When the loader reads the dataset without the recipe.
        now: When the loader reads it with the recipe.
        key: The setting that causes the difference.
    """
    known = [one for other, one in list(_followed.items()) if other.dataset is loader.dataset]
    alike = [one.before for one in known if one.now == before]
    before = alike[0] if alike else before  # the loader is a copy of another one, as with Accelerate
    if before != now:
        _followed[loader] = _Followed(before, now, key)


def loaded(iterator: Any) -> None:
    """Record the attributes that changed because the first samples of an epoch were loaded, not by the program."""
    one, loader = _of_iterators.get(iterator, (None, None))
    if one is not None and one.begun is not None:
        one.volatile.update(changed(one.begun, state_of(*roots(loader))))


def is_given_up(iterator: Any) -> bool:
    """Return whether the iterator's dataset changed while samples were loaded from it."""
    found = _of_iterators.get(iterator)
    return found is not None and found[0].lost


def patch(torch: Any) -> None:
    """Check datasets for changes when loaders begin an epoch and when they return batches."""
    from torch.utils.data import dataloader

    _patch_epochs(dataloader.DataLoader)
    _patch_batches(dataloader._BaseDataLoaderIter)


def _patch_epochs(loader_class: Any) -> None:
    original = loader_class.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        one = _followed.get(self)
        if one is not None and _reads_as_before(self, one):
            one = None
        if one is not None:
            _begin_epoch(self, one)
        iterator = original(self)
        if one is not None:
            _of_iterators[iterator] = (one, self)
        return iterator

    hooks.install(loader_class, "__iter__", __iter__)


def _patch_batches(iterator_class: Any) -> None:
    original = iterator_class.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        found = _of_iterators.get(self)
        if found is None or found[0].lost:
            return original(self)
        _begin_batch(*found)
        try:
            return original(self)
        except StopIteration:
            _compare_within(*found)
            raise

    hooks.install(iterator_class, "__next__", __next__)


def _reads_as_before(loader: Any, one: _Followed) -> bool:
    """Return whether an epoch reads the dataset at the same times as without the recipe.

    This is true for loaders whose settings are undone during evaluation.
    """
    return one.now != "ahead" and not one.lost and reads(loader.num_workers, loader.persistent_workers) == one.before


def _begin_epoch(loader: Any, one: _Followed) -> None:
    if one.lost:
        _without_workers(loader)
        return
    state, one.batches = state_of(*roots(loader)), 0
    one.begun = state
    if one.first is None or not one.across_epochs:
        one.first = state
    elif differing := changed(one.first, state, one.volatile):
        if one.now == "once" and getattr(loader, "_iterator", None) is not None:
            loader._iterator._shutdown_workers()
            loader._iterator = None  # new workers with the current dataset
            one.first = state
        else:
            _give_up(loader, one, differing, "between epochs")


def _begin_batch(one: _Followed, loader: Any) -> None:
    one.batches += 1
    if not one.batches & (one.batches - 1):
        _compare_within(one, loader)


def _compare_within(one: _Followed, loader: Any) -> None:
    if not one.within_epochs or one.begun is None:
        return
    try:
        differing = changed(one.begun, state_of(*roots(loader)), one.volatile)
    except RuntimeError:  # a thread that loads samples changed a collection at the same time
        return
    if differing:
        _give_up(loader, one, differing, "within an epoch")


def roots(loader: Any) -> list[Any]:
    """Return the objects that make a loader's samples: the dataset, and the collate function if it is an object."""
    collate = loader.collate_fn
    return [loader.dataset, *([collate] if hasattr(collate, "__dict__") and not is_function(collate) else [])]


def is_function(value: Any) -> bool:
    """Return whether a value is a function or a method; their state is not compared."""
    return hasattr(value, "__code__") or hasattr(value, "__func__")


def _give_up(loader: Any, one: _Followed, names: list[str], when: str) -> None:
    one.lost = True
    confirmation.gave_up(
        one.key,
        f"the program changes {in_words(names)} of {type(loader.dataset).__name__} {when}, and samples would be made "
        f"from the dataset as it was before",
    )


def _without_workers(loader: Any) -> None:
    """Make a loader load in the training process from now on, so that it sees each change of the dataset."""
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None
    for name, value in (("num_workers", 0), ("prefetch_factor", None), ("persistent_workers", False)):
        object.__setattr__(loader, name, value)
