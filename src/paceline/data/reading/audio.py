"""Decoding of audio files from their bytes, with soundfile (libsndfile)."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault
from paceline.data.sources import BadSample


class Sound(NamedTuple):
    """Decoded audio."""

    samples: NDArray[np.float32]  # [channels, samples], from -1 to 1
    rate: int  # samples per second, of each channel


def decode_audio(data: bytes, start: int = 0, frames: int = -1) -> Sound:
    """Decode the bytes of an audio file: WAV, FLAC, OGG, MP3 and other formats of libsndfile.

    Use it in a function that is given to a loader as `transform=`: `lambda sample: decode_audio(sample["audio"])`.

    Args:
        data: The bytes of the file.
        start: The first sample of each channel to return.
        frames: How many samples of each channel to return; -1 for all that follow.

    Returns:
        Samples of shape [channels, samples] and the sample rate.

    Raises:
        BadSample: libsndfile cannot decode the bytes.
        EnvironmentFault: soundfile is not installed.
    """
    try:
        import soundfile
    except ImportError as error:
        raise EnvironmentFault("sound needs soundfile to be decoded: pip install 'paceline[audio]'") from error
    try:
        read: tuple[Any, int] = soundfile.read(io.BytesIO(data), frames, start, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, ValueError) as error:
        raise BadSample(f"sound of {len(data):,} bytes cannot be decoded: {error}") from error
    return Sound(np.ascontiguousarray(read[0].T), read[1])
