"""Sources that can be converted, one file for each kind. Each says how many samples it has, and gives one by number.

A source is sent to the processes that convert, so it holds paths and numbers, and opens what it reads when it is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.data.format.model import Column, Sample, shown


class Source(Protocol):
    """Samples that lie elsewhere."""

    @property
    def columns(self) -> Sequence[Column]:
        """What each sample has."""

    @property
    def classes(self) -> Sequence[str]:
        """Names of the labels, in their order; none where they have no names."""

    @property
    def version(self) -> str:
        """What else than names and sizes would make other samples of them: another one, others."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def size(self, number: int) -> int:
        """Return about how many bytes a sample has, without reading it."""

    def name(self, number: int) -> str:
        """Return what a sample is called."""

    def sample(self, number: int) -> Sample:
        """Read a sample.

        Raises:
            BadSample: It cannot be read.
        """


class BadSample(ValueError):
    """A sample that cannot be read; the message says why."""

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))
