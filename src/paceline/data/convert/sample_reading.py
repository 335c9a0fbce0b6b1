"""Samples of a source, checked and made ready for shards."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.data.convert.lossless import in_intervals
from paceline.data.format.model import Column, Payload, Sample
from paceline.data.sources import BadSample, Source
from paceline.data.sources.sample_checks import fitting

_JPEG = ("jpg", "jpeg")

Numbers = NDArray[np.int64]


def read_samples(
    source: Source, numbers: Numbers, threads: int, *, verbatim: bool
) -> Generator[tuple[int, Sample | BadSample], None, None]:
    """Yield samples with their numbers, read some ahead by threads, so that memory is bounded. To be closed.

    Args:
        source: Where they are.
        numbers: Of the samples, in the order in which they come.
        threads: That read.
        verbatim: Whether JPEGs stay as they are.
    """

    def one(number: int) -> Sample | BadSample:
        try:
            sample = fitting(source.sample(number), source.name(number), source.columns)
            return sample if verbatim else _fast(sample, source.columns)
        except BadSample as error:
            return error

    ids, ahead = numbers.tolist(), 4 * threads
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(ids), ahead):
            some = ids[begin : begin + ahead]
            yield from zip(some, pool.map(one, some), strict=True)


def _fast(sample: Sample, columns: Sequence[Column]) -> Sample:
    """Return a sample whose JPEGs are fast to decode."""
    made = dict(sample)
    for column in columns:
        value = sample[column.name]
        if column.kind == "image" and isinstance(value, Payload) and value.suffix in _JPEG:
            made[column.name] = replace(value, data=in_intervals(value.data))
    return made
