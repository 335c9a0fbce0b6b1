"""Reading of a source's samples by threads, with the checks and the recoding for shards."""

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


def fitting(sample: Sample, name: str, columns: Sequence[Column]) -> Sample:
    """Return a sample unchanged if its columns can store its numbers and a loader can read its bytes.

    Args:
        sample: The sample.
        name: Its name, for messages.
        columns: The columns.

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
    """Return a sample whose JPEGs are recoded without loss to be fast to decode."""
    made = dict(sample)
    for column in columns:
        value = sample[column.name]
        if column.kind == "image" and isinstance(value, Payload) and value.suffix in _JPEG:
            made[column.name] = replace(value, data=in_intervals(value.data))
    return made
