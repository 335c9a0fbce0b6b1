"""Positions of the loaders of a run, which checkpoints contain.

A loader that the program passes to the engine again keeps its position. A program can also create a loader for each
epoch: a new loader replaces the first loader that the program no longer has. Loaders are numbered in the order of
their first use, and a checkpoint has one position for each number.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.errors import UsageError
from paceline.train.ranks.world import text_of

SEVERAL_LOOPS = "the program reads the loader in several loops at the same time: save after an epoch"


class LoaderPosition(Protocol):
    """The position of a loader."""

    was_read: bool  # whether a loop over the loader began since it was added or a checkpoint was loaded

    def state(self) -> dict[str, Any]:
        """Return the position in a form that JSON can store."""

    def follow(self, earlier: Any) -> None:
        """Copy the information about an earlier loader, which this loader replaces."""


class PositionedPart(Protocol):
    """A loader of this rank's part of each batch."""

    position: Any  # a LoaderPosition
    options: Any  # settings of the program's loader that were used

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position."""


@dataclass
class BatchPosition:
    """The position of a `DataLoader`, counted in global batches."""

    samples: int
    batches: int | None  # None if the batch sampler has no length
    why: str | None  # why the loader cannot resume in the middle of an epoch; None if it can
    generator: Any  # the sampler's own generator, or None
    taken: int = 0  # batches of this epoch that the program got
    begun: Any = None  # random states before this epoch
    was_left: bool = False  # whether the last loop ended before the epoch
    leaves_epochs: bool = False  # whether the program began a new epoch after it left one before its end
    is_renewed: bool = False  # whether the program creates a loader for each epoch
    keeps_generator: bool = True  # False: each of these loaders has a new generator
    keeps_workers: bool = False  # whether workers were started that serve later epochs too
    was_read: bool = False
    assumed: str = ""  # what `load` assumed between two epochs, and a new loader would disprove

    def begin(self, taken: int) -> None:
        """Note that a loop begins after some batches of the epoch."""
        self.leaves_epochs = self.leaves_epochs or self.was_left
        self.taken, self.was_left, self.was_read = taken, False, True

    def state(self) -> dict[str, Any]:
        """Return the position in a form that JSON can store."""
        taken = 0 if self.was_left and self.leaves_epochs else self.taken
        begun = self.begun if taken else None
        generator = self.generator if self.keeps_generator else None
        return {
            "samples": self.samples,
            "batches": self.batches,
            "taken": taken,
            "why": self.why,
            "begun": None if begun is None else [text_of(state) for state in begun],
            "generator": None if generator is None else text_of(generator.get_state()),
            "seed": None if generator is None else generator.initial_seed(),
            "was_left": self.was_left,
            "leaves_epochs": self.leaves_epochs,
            "is_renewed": self.is_renewed,
            "keeps_generator": self.keeps_generator,
            "keeps_workers": self.keeps_workers and not self.is_renewed,
        }

    def load_habits(self, state: Mapping[str, Any]) -> None:
        """Restore how the program uses the loader: whether it creates a new one, or leaves loops, in each epoch."""
        self.leaves_epochs = state.get("leaves_epochs", False)
        self.is_renewed = state.get("is_renewed", False)
        self.keeps_generator = state.get("keeps_generator", True)
        self.was_left, self.assumed = False, ""

    def follow(self, earlier: Any) -> None:
        """Copy the information about an earlier loader, which this loader replaces.

        Raises:
            UsageError: The earlier loader wrongly continued from a checkpoint as if it were the only one.
        """
        if not isinstance(earlier, BatchPosition):
            return
        same = self.generator is earlier.generator
        if earlier.assumed and not (same and self.generator):
            raise UsageError(
                f"the program creates a loader for each epoch, with {earlier.assumed}, so the epoch after load() had "
                "other random numbers than without the interruption; create the loader once, before the epochs, or "
                "save within an epoch"
            )
        self.leaves_epochs = earlier.leaves_epochs or earlier.was_left
        self.is_renewed, self.keeps_generator = True, earlier.keeps_generator and (same or self.generator is None)


@dataclass
class _Entry:
    """A loader with its position."""

    loader: weakref.ref[Any]  # the program's loader
    position: LoaderPosition


class LoaderPositions:
    """The positions of a run's loaders, in the order in which the engine got them."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._parts: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._waiting: dict[int, Any] = {}  # positions from a checkpoint for loaders that are not added yet
        self._interrupted: list[int] = []  # numbers of the loaders that were saved within an epoch

    def part_of(self, loader: Any, options: Any, create: Callable[[], PositionedPart]) -> Any:
        """Return this rank's part of a loader: the one of an earlier call, or a new one.

        A new one continues at the position that a loaded checkpoint has for it.

        Args:
            loader: The program's loader.
            options: Settings of the loader that the program can change. If they changed, a new part is created.
            create: Creates the part.
        """
        with suppress(TypeError):  # another type, which `create` refuses
            known = self._parts.get(loader)
            if known is not None and known.options == options:
                return known
        part = create()
        self._add(loader, part)
        self._parts[loader] = part
        return part

    def _add(self, loader: Any, part: PositionedPart) -> None:
        given = (entry.loader() for entry in self._entries)
        number = next((number for number, one in enumerate(given) if one is None or one is loader), len(self._entries))
        if number < len(self._entries):
            part.position.follow(self._entries[number].position)
        if number in self._waiting:
            part.load_state_dict(self._waiting.pop(number))
        self._entries[number : number + 1] = [_Entry(weakref.ref(loader), part.position)]

    def state(self) -> list[Any]:
        """Return all positions in a form that JSON can store."""
        return [entry.position.state() for entry in self._entries]

    def load(self, states: Sequence[Any]) -> None:
        """Set the positions of the loaders; positions without a loader are kept for loaders that are added later.

        Raises:
            UsageError: There are more loaders than positions in the checkpoint, or a loader has another data set.
        """
        self._entries = [entry for entry in self._entries if entry.loader() is not None]
        if states and len(states) < len(self._entries):  # without any, loaders were added later
            raise UsageError(
                f"the checkpoint has the positions of {len(states)} loaders, but the engine got "
                f"{len(self._entries)} before load(); pass the loaders that continue before load(), and the "
                f"others after it"
            )
        for entry, state in zip(self._entries, states, strict=False):
            entry.position.was_read = False
            self._parts[entry.loader()].load_state_dict(state)
        known = len(self._entries)
        self._waiting = dict(enumerate(states[known:], known))
        self._interrupted = [number for number, state in enumerate(states) if state.get("taken", state.get("consumed"))]

    def check_continued(self) -> None:
        """Check before the first step after `load` that the program continues an interrupted epoch.

        Raises:
            UsageError: The program read batches, but not those of a loader that was saved within an epoch.
        """
        if not self._interrupted:
            return
        read = {number for number, entry in enumerate(self._entries) if entry.position.was_read}
        if not read:
            return
        interrupted, self._interrupted = self._interrupted, []
        if read.isdisjoint(interrupted):
            raise UsageError(
                f"the checkpoint was saved within an epoch of loader {interrupted[-1] + 1}, but after load() the "
                f"program trains with loader {min(read) + 1}, in the order in which engine.loader first got them; "
                "continue with the interrupted loader, create one DataLoader for all epochs, or save after an epoch"
            )
