"""Handling of bad samples: the first one ends the loop, or bad samples are counted and replaced by good ones."""

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
    """Raised if all samples of a batch are bad, and bad samples are skipped."""


@dataclass(frozen=True)
class Bad:
    """A bad sample: its name, and the error message."""

    name: str
    why: str


@dataclass(kw_only=True)
class Faults:
    """Counts bad samples, or ends the loop at the first one if they are not skipped; safe from several threads."""

    skip: bool
    count: int = 0
    first: list[Bad] = field(default_factory=list)  # up to eight, for the report
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _here: threading.local = field(default_factory=threading.local)
    _told: int = 0

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Return a context in which bad samples of this thread are skipped but not counted."""
        self._here.counts_not = True
        try:
            yield
        finally:
            self._here.counts_not = False

    def met_in(self, name: str, error: Exception) -> None:
        """Count a sample that could not be read, or for which the user's function failed.

        Args:
            name: The name of the sample, for messages.
            error: The error.

        Raises:
            Exception: The error with the name of the sample, if bad samples are not skipped.
        """
        if not self.skip:
            raise named(name, error)
        self.met(name, error)

    def met(self, name: str, error: Exception) -> None:
        """Count a bad sample.

        Args:
            name: The name of the sample, for messages.
            error: The error.

        Raises:
            DamagedData: Bad samples are not skipped.
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
        """Log the number of samples that were replaced since the last call, if any."""
        new, self._told = self.count - self._told, self.count
        if new:
            one = self.first[0]
            _log.warning("%d bad samples were replaced by others, such as %s: %s", new, one.name, one.why)


def named(name: str, error: Exception) -> Exception:
    """Return an error that names the sample: bad bytes give `DamagedData`, other errors keep their type."""
    if isinstance(error, DamagedData):
        return error
    if isinstance(error, UndecodablePicture):
        made = DamagedData(f"{name}: {error}")
        made.__cause__ = error
        return made
    if isinstance(error, StopIteration):
        return as_runtime_error(name, error)
    error.add_note(f"of {name}")
    return error


def as_runtime_error(name: str, error: Exception) -> Exception:
    """Return an error of the user's code, with StopIteration as a RuntimeError, as in generators (PEP 479).

    A StopIteration would end the training's loop over the epoch without a message.

    Args:
        name: The name of the sample or batch, for the message.
        error: The error.
    """
    if not isinstance(error, StopIteration):
        return error
    made = RuntimeError(
        f"the code for {name} raised StopIteration, such as next() of an iterator without another element; give next() "
        "a default, or catch the exception"
    )
    made.__cause__ = error
    return made


def batch_name(first: int) -> str:
    """Return the name of a batch for messages, from the number of its first sample."""
    return f"the batch of sample {first} (collate_fn or batch_transform)"


def why(name: str, error: Exception) -> str:
    """Return the message of an error without the name of the sample."""
    return str(error).removeprefix(f"{name}: ") or type(error).__name__


class UnequalSamples(UsageError):
    """The values of a column do not fit into one tensor."""


def tensor_of(column: str, values: list[Any]) -> Any:
    """Collate the values of a column as torch's `default_collate` does.

    Args:
        column: The name of the column, for messages.
        values: The value of each sample.

    Raises:
        UnequalSamples: The values have different shapes, or a type that tensors do not have.
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
    """Collate samples into a batch; good samples are repeated to replace bad ones.

    Args:
        made: The good samples.
        size: The number of samples in the batch.
        collate: The user's function; None for torch's `default_collate`.

    Raises:
        Skipped: There is no good sample.
    """
    if not made:
        raise Skipped
    made = [made[place % len(made)] for place in range(size)]
    if collate is not None:
        return collate(made)
    from torch.utils.data import default_collate

    return default_collate(made)


def fill_gaps(values: NDArray[Any], good: NDArray[np.bool_]) -> None:
    """Overwrite the rows of bad samples in a batch with the rows of good samples, in turn and in place.

    Args:
        values: An array with one row for each sample.
        good: A flag for each sample.

    Raises:
        Skipped: There is no good sample.
    """
    if good.all():
        return
    if not good.any():
        raise Skipped
    bad = np.flatnonzero(~good)
    values[bad] = values[np.resize(np.flatnonzero(good), len(bad))]
