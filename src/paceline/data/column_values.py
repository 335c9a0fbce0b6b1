"""What the bytes of a column stand for: pixels, an array, text, JSON, or themselves."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from paceline.data.model import Column
from paceline.data.pictures import Decoder


def decoder_for(columns: Sequence[Column], *, exact: bool) -> Decoder | None:
    """Return a decoder where there are pictures."""
    return Decoder(exact=exact) if any(column.kind == "image" for column in columns) else None


def value_of(column: Column, data: memoryview, decoder: Decoder | None) -> Any:
    """Return what bytes of a column stand for: pixels, an array, text, or themselves."""
    if column.kind == "image":
        assert decoder is not None  # there is a column of pictures
        return decoder.image(data, column.mode)
    if column.kind == "array":
        array = np.load(io.BytesIO(data), allow_pickle=False)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if column.kind == "json":
        return msgspec.json.decode(data)
    return bytes(data).decode() if column.kind == "text" else bytes(data)
