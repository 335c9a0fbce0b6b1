"""Sources for conversion, one module for each format. A source has a number of samples and returns each by its number.

A source is pickled and sent to the converting processes. So it stores paths and numbers, and opens files when it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.data.format.model import Column, Sample, shown


class Source(Protocol):
    """The samples of a dataset to convert."""

    @property
    def columns(self) -> Sequence[Column]:
        """The columns of each sample."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the labels, by number; empty if they have no names."""

    @property
    def version(self) -> str:
        """A fingerprint of what determines the samples besides names and sizes, such as modification times."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def size(self, number: int) -> int:
        """Return the approximate number of bytes of a sample, without reading it."""

    def name(self, number: int) -> str:
        """Return the name of a sample, for messages and the index."""

    def sample(self, number: int) -> Sample:
        """Read a sample.

        Raises:
            BadSample: The sample cannot be read.
        """


class BadSample(ValueError):
    """A sample cannot be read; the message says why."""

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))
