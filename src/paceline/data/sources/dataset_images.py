"""Storage of PIL images that a Python dataset returns: their original file if known, else pixels as PNG or JPEG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.core import units
from paceline.core.errors import UsageError
from paceline.data.format.column_kinds import plain_suffix
from paceline.data.format.image_modes import pil
from paceline.data.format.model import Payload

Written = Literal["png", "jpeg"]
_WRITTEN: tuple[Written, ...] = ("png", "jpeg")
_QUALITY = 95  # of written JPEGs
_OF_JPEG = ("L", "RGB", "CMYK")  # the modes that JPEG supports
_PLAIN = ("L", "RGB", "RGBA")  # modes whose pixels a PNG holds as they are


def image_payload(picture: Any, written: Written | None) -> Payload:
    """Return the bytes of an image: its original file if possible, else its pixels as PNG or JPEG.

    Args:
        picture: A PIL image.
        written: The format for pixels; None allows only images with an original file.

    Raises:
        ValueError: There is no original file and no format, or the format does not support the image.
    """
    own = _own_file(picture)
    if own is not None:
        return own
    if written is None:
        raise ValueError(
            "it is an image without a file of its own; choose how to write its pixels: --images png, or Writer(..., "
            "images='png')"
        )
    file = io.BytesIO()
    if written == "jpeg" and picture.mode not in _OF_JPEG:
        raise ValueError(
            f"an image of mode {picture.mode} cannot be written as JPEG; use png, or give pixels as an array"
        )
    try:
        if written == "jpeg":
            picture.save(file, format="JPEG", quality=_QUALITY)
        else:
            _with_all_ids(picture).save(file, format="PNG", compress_level=1)
    except OSError as error:
        raise ValueError(
            f"an image of mode {picture.mode} cannot be written as {written.upper()}; give its pixels as an array"
        ) from error
    if written == "png" and picture.mode not in _PLAIN:
        _check_same(picture, file)
    return Payload(data=file.getvalue(), suffix="png" if written == "png" else "jpg")


def _with_all_ids(picture: Any) -> Any:
    """Return an image whose palette has a colour for each id, because Pillow cuts ids to the bits of the palette."""
    if picture.mode != "P":
        return picture
    layout = picture.palette.mode  # such as RGB, with a byte for each letter
    colours, needed = picture.getpalette(layout) or [], len(layout) * (int(np.max(picture, initial=0)) + 1)
    if len(colours) >= needed:
        return picture
    made = picture.copy()
    made.putpalette(colours + [0] * (needed - len(colours)), layout)
    return made


def _check_same(picture: Any, file: io.BytesIO) -> None:
    """Read a written image again and compare its pixels, because Pillow converts some modes.

    Raises:
        ValueError: The pixels differ.
    """
    with pil().open(file) as again:
        same = np.array_equal(np.asarray(again), np.asarray(picture))
    if not same:
        raise ValueError(f"an image of mode {picture.mode} has other pixels as PNG; give its pixels as an array")


def images_choice(name: str, pictures: Sequence[Any], samples: int) -> UsageError:
    """Return the error that asks for a format of pixels, with the estimated size of each format.

    Args:
        name: The name of the dataset.
        pictures: Images of some of its samples.
        samples: The number of its samples.
    """
    sizes = {}
    for written in _WRITTEN:
        try:
            sizes[written] = float(np.mean([len(image_payload(one, written).data) for one in pictures])) * samples
        except ValueError:
            continue
    if not sizes:
        modes = ", ".join(sorted({str(picture.mode) for picture in pictures}))
        return UsageError(
            f"{name} returns images of mode {modes}, which neither PNG nor JPEG can hold; return their pixels as "
            "arrays (numpy.asarray(image))"
        )
    choices = {"png": "--images png keeps every value", "jpeg": f"--images jpeg loses some (quality {_QUALITY})"}
    said = "; ".join(f"{choices[written]}, about {units.size(size)}" for written, size in sizes.items())
    return UsageError(f"{name} returns images as pixels, without the files that they were. Choose one: {said}")


def _own_file(picture: Any) -> Payload | None:
    """Return the file from which an image was opened, or None if the image no longer has the pixels of the file."""
    path, written = getattr(picture, "filename", None), getattr(picture, "format", None)
    if not isinstance(path, str) or not path or not written:
        return None
    try:
        data = Path(path).read_bytes()
        with pil().open(io.BytesIO(data)) as again:
            same = again.mode == picture.mode and np.array_equal(np.asarray(again), np.asarray(picture))
            same = same and again.getpalette() == picture.getpalette()  # None where pixels are no ids
    except (OSError, ValueError):
        return None
    return Payload(data=data, suffix=plain_suffix(str(written))) if same else None
