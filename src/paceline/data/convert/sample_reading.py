"""Samples of a source, checked and made ready for shards."""

from __future__ import annotations

import io
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.data.convert.lossless import in_intervals
from paceline.data.format.image_modes import NotAnImage, check_complete, image_header
from paceline.data.format.index import UNREADABLE
from paceline.data.format.model import Column, Payload, Sample
from paceline.data.sources import BadSample, Source

_JPEG = ("jpg", "jpeg")
_MOST = 1 << 63

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


def fitting(sample: Sample, name: str, columns: Sequence[Column]) -> Sample:
    """Return a sample if its numbers fit where they are kept, and a loader can read its bytes.

    Raises:
        BadSample: A number does not fit, or bytes are not the image, text or array that they should be.
    """
    for column in columns:
        value = sample[column.name]
        if not isinstance(value, Payload):
            continue
        try:
            if column.kind == "image":
                image_header(value.data)
                check_complete(value.data)
            elif column.kind == "text":
                value.data.decode()
            elif column.kind == "array":
                np.load(io.BytesIO(value.data), allow_pickle=False)
        except NotAnImage as error:
            raise BadSample(f"{name}: {column.name} is not an image that can be used: {error}") from error
        except UNREADABLE as error:
            said = "UTF-8 text" if column.kind == "text" else "an array of NumPy"
            raise BadSample(f"{name}: {column.name} is not {said}: {error}") from error
    for key, value in sample.items():
        if isinstance(value, int) and not -_MOST <= value < _MOST:
            raise BadSample(f"{name}: {key} is {value}; only signed whole numbers of up to 64 bits are supported")
    return sample


def _fast(sample: Sample, columns: Sequence[Column]) -> Sample:
    """Return a sample whose JPEGs are fast to decode."""
    made = dict(sample)
    for column in columns:
        value = sample[column.name]
        if column.kind == "image" and isinstance(value, Payload) and value.suffix in _JPEG:
            made[column.name] = replace(value, data=in_intervals(value.data))
    return made
