"""Bad samples: the first ends the loop, or they are counted and good ones take their places."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.format.index import DamagedData
from paceline.data.reading.pictures import UndecodablePicture

_log = logging.getLogger("paceline.data")


class Skipped(Exception):
    """All samples of a batch are bad."""


@dataclass(frozen=True)
class Bad:
    """A sample that could not be used."""

    name: str
    why: str


@dataclass(kw_only=True)
class Faults:
    """Bad samples: the first ends the loop, or they are counted and left out."""

    skip: bool
    count: int = 0
    first: list[Bad] = field(default_factory=list)  # a few, to be shown
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _here: threading.local = field(default_factory=threading.local)
    _told: int = 0

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Have this thread leave out bad samples without counting them."""
        self._here.counts_not = True
        try:
            yield
        finally:
            self._here.counts_not = False

    def met_in(self, name: str, error: Exception) -> None:
        """Count a sample that the user's own function, or reading it, has failed with.

        Raises:
            Exception: What it was, if bad samples are not to be skipped.
        """
        if not self.skip:
            raise named(name, error)
        self.met(name, error)

    def met(self, name: str, error: Exception) -> None:
        """Count a bad sample.

        Raises:
            DamagedData: Bad samples are not to be skipped.
        """
        if not self.skip:
            raise error if isinstance(error, DamagedData) else DamagedData(f"{name}: {error}") from error
        if getattr(self._here, "counts_not", False):
            return
        with self._lock:
            self.count += 1
            if len(self.first) < 8:
                self.first.append(Bad(name, why(name, error)))

    def tell(self) -> None:
        """Log how many samples were replaced since this was told last, if there were any."""
        new, self._told = self.count - self._told, self.count
        if new:
            one = self.first[0]
            _log.warning("%d bad samples were replaced by others, such as %s: %s", new, one.name, one.why)


def named(name: str, error: Exception) -> Exception:
    """Return an error that names the sample: bad bytes are `DamagedData`, the user's own errors stay what they are."""
    if isinstance(error, DamagedData):
        return error
    if isinstance(error, UndecodablePicture):
        made = DamagedData(f"{name}: {error}")
        made.__cause__ = error
        return made
    error.add_note(f"of {name}")
    return error


def why(name: str, error: Exception) -> str:
    """Return what an error says of a sample, without its name."""
    return str(error).removeprefix(f"{name}: ") or type(error).__name__


class UnequalSamples(UsageError):
    """Values of a column that do not fit into one tensor."""


def tensor_of(column: str, values: list[Any]) -> Any:
    """Put the values of a column together as torch's `default_collate` does.

    Raises:
        UnequalSamples: They have different shapes, or a type that tensors do not have.
    """
    from torch.utils.data import default_collate

    try:
        return default_collate(values)
    except (RuntimeError, TypeError, ValueError) as error:
        kinds = dict.fromkeys(f"{one.dtype} {one.shape}" for one in values if hasattr(one, "shape"))
        raise UnequalSamples(
            f"the values of column {column} do not fit into one tensor ({', '.join(list(kinds)[:3]) or error}); give "
            "collate_fn=, such as list for a list of samples, or leave the column out with columns="
        ) from error


def collated(made: list[Any], size: int, collate: Callable[[list[Any]], Any] | None) -> Any:
    """Put samples together; where some were bad, good ones of the same batch take their places.

    Raises:
        Skipped: There is no good one.
    """
    if not made:
        raise Skipped
    made = [made[place % len(made)] for place in range(size)]
    if collate is not None:
        return collate(made)
    from torch.utils.data import default_collate

    return default_collate(made)


def fill_gaps(values: NDArray[Any], good: NDArray[np.bool_]) -> None:
    """Put good samples of a batch, one after the other, where bad ones were.

    Raises:
        Skipped: There is no good one.
    """
    if good.all():
        return
    if not good.any():
        raise Skipped
    bad = np.flatnonzero(~good)
    values[bad] = values[np.resize(np.flatnonzero(good), len(bad))]
