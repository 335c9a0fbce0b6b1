"""Reading of a source's samples by threads, with the checks and the recoding for shards."""

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
    """Yield each sample, or its error, with its number; threads read a bounded number of samples ahead.

    The generator must be closed, which ends its threads.

    Args:
        source: The source.
        numbers: The numbers of the samples, in the order in which they are yielded.
        threads: The number of threads.
        verbatim: Whether JPEGs are stored unchanged.
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
    """Return a sample whose JPEGs are recoded without loss to be fast to decode."""
    made = dict(sample)
    for column in columns:
        value = sample[column.name]
        if column.kind == "image" and isinstance(value, Payload) and value.suffix in _JPEG:
            made[column.name] = replace(value, data=in_intervals(value.data))
    return made
