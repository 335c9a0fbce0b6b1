"""Checks of samples of a source: numbers fit into 64 bits; bytes are the image, text or array that they should be."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from paceline.data.format.image_modes import NotAnImage, check_complete, image_header
from paceline.data.format.index import UNREADABLE
from paceline.data.format.model import Column, Payload, Sample
from paceline.data.sources import BadSample

_MOST = 1 << 63


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
