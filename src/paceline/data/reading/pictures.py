"""Decoding of images into batches.

Only the part that a crop needs is decoded, and resized directly into the image's slot of the batch array.

simplejpeg (libjpeg-turbo) decodes, OpenCV enlarges and torch shrinks images; all of them release the GIL. libjpeg's
scaled decoding is not used: at any factor other than 1/2, 1/4 and 1/8 it is slower than decoding all pixels.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault
from paceline.data.format.image_modes import DEEP, EACH, NotAnImage, image_header, pil
from paceline.data.format.model import Column
from paceline.data.reading.jpeg_parts import Parts

Pixels = NDArray[np.uint8]  # of shape [height, width, 3], red, green, blue


class Box(NamedTuple):
    """A box in an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class UndecodablePicture(ValueError):
    """No decoder can decode the bytes."""


class Decoder:
    """Decodes images; each thread has its own buffer."""

    def __init__(self, *, exact: bool = False) -> None:
        """Import the decoding libraries.

        Args:
            exact: Whether to decode bit for bit as PIL does. Otherwise a faster transform is used, and subsampled
                chroma is not smoothed; the result differs by a few of 255 levels.

        Raises:
            EnvironmentFault: A package is not installed.
        """
        self._jpeg, self._cv2 = libraries()
        self._fast = not exact
        self.looks_beyond = exact  # smoothed chroma depends on one more pixel around a part
        self._own = threading.local()

    def whole(self, data: memoryview) -> Pixels:
        """Decode a whole image of any format to RGB. The result is valid until the next call in this thread.

        Raises:
            UndecodablePicture: The bytes are no image.
        """
        if bytes(data[:2]) == b"\xff\xd8":
            try:
                height, width, *_ = self._jpeg.decode_jpeg_header(data)
                return self._decoded(data, height * width)
            except (ValueError, KeyError):
                pass  # CMYK, or a chroma subsampling that simplejpeg does not support
        return self._cv2.cvtColor(self._by_opencv(data, self._cv2.IMREAD_COLOR), self._cv2.COLOR_BGR2RGB)

    def image(self, data: memoryview, mode: str) -> NDArray[Any]:
        """Decode an image to a new array with the channels and the depth of a mode.

        Args:
            data: The bytes of the file.
            mode: A mode of PIL, or one of `DEEP`; `EACH` for the image's own mode; empty for RGB.

        Returns:
            Pixels of shape [height, width] or [height, width, channels]. With mode P they are ids of the palette.

        Raises:
            UndecodablePicture: The bytes are no image, or the image would lose values in this mode.
        """
        try:
            own = image_header(data).mode
        except NotAnImage as error:
            raise UndecodablePicture(str(error)) from error
        wanted = own if mode == EACH else mode or "RGB"
        if own in (*DEEP, "I;16", "I;16B", "I", "F") and wanted != own and (own, wanted) != ("I;16", "I"):
            raise UndecodablePicture(f"its mode is {own}, and mode {wanted} would lose values; convert the data again")
        if wanted in DEEP:
            return self._deep(data, wanted)
        is_jpeg = bytes(data[:2]) == b"\xff\xd8"
        if wanted == "RGB" and (is_jpeg or own == "RGB"):
            return self.whole(data).copy()
        return self._gray(data) if wanted == own == "L" and is_jpeg else _by_pil(data, wanted)

    def _gray(self, data: memoryview) -> Pixels:
        try:
            found: Pixels = self._jpeg.decode_jpeg(data, "GRAY", fastdct=self._fast, fastupsample=self._fast)[..., 0]
        except ValueError as error:
            raise UndecodablePicture(str(error)) from error
        return found

    def _deep(self, data: memoryview, mode: str) -> NDArray[Any]:
        found = self._by_opencv(data, self._cv2.IMREAD_UNCHANGED)
        if found.dtype != np.uint16 or found.ndim != 3:
            raise UndecodablePicture(f"its mode is {mode}, and OpenCV decodes it as {found.dtype} {found.shape}")
        order = {"RGB;16": [2, 1, 0], "RGBA;16": [2, 1, 0, 3], "LA;16": [0, 3]}[mode]
        return np.ascontiguousarray(found[..., order])

    def _by_opencv(self, data: memoryview, how: int) -> NDArray[Any]:
        how |= self._cv2.IMREAD_IGNORE_ORIENTATION  # as PIL does, and as in the index
        try:
            found = self._cv2.imdecode(np.frombuffer(data, np.uint8), how) if len(data) else None
        except self._cv2.error as error:  # such as a size limit
            raise UndecodablePicture(f"OpenCV refuses it: {str(error).strip()}") from error
        if found is None:
            raise UndecodablePicture("no image decoder can read it")
        pixels: NDArray[Any] = found
        return pixels

    def part(self, data: memoryview, parts: Parts, picture: int, box: Box) -> Pixels:
        """Return the pixels of a box of a JPEG that can be cut.

        If simplejpeg does not support the chroma subsampling, the whole image is decoded.

        Args:
            data: The bytes of the whole file.
            parts: The parts of the images in a batch.
            picture: The index of the image in the batch.
            box: The box.

        Raises:
            UndecodablePicture: The image is damaged.
        """
        try:
            found = self._decoded(parts.alone(picture, data), parts.pixels[picture])
        except ValueError as error:
            if self._knows_sampling(data):
                raise UndecodablePicture(str(error)) from error
            return self.whole(data)[box.top : box.top + box.height, box.left : box.left + box.width]
        top, left = parts.tops[picture], parts.lefts[picture]
        return found[top : top + box.height, left : left + box.width]

    def _knows_sampling(self, data: memoryview) -> bool:
        """Return whether simplejpeg supports the chroma subsampling of a JPEG."""
        try:
            self._jpeg.decode_jpeg_header(data)
        except (ValueError, KeyError):
            return False
        return True

    def fill(self, slot: Pixels, part: Pixels, *, mirrored: bool, antialias: bool = True) -> None:
        """Write a part of an image into its slot of a batch, resized to the slot."""
        resize_into(slot, part, self._cv2, antialias=antialias)
        if mirrored:
            self._cv2.flip(slot, 1, dst=slot)

    def _decoded(self, data: memoryview | bytearray, pixels: int) -> Pixels:
        scratch = getattr(self._own, "scratch", None)
        if scratch is None or len(scratch) < 3 * pixels:
            scratch = self._own.scratch = np.empty(3 * pixels, np.uint8)
        return self._jpeg.decode_jpeg(data, "RGB", fastdct=self._fast, fastupsample=self._fast, buffer=scratch)


def resize_into(slot: Pixels, part: Pixels, cv2: Any, *, antialias: bool) -> None:
    """Resize a part of an image to the size of an array, by bilinear interpolation.

    If the image shrinks, a filter averages all pixels of the part, as in PIL and torchvision (within 1 of 255 levels).

    Args:
        slot: The array to fill, of shape [height, width, 3].
        part: The pixels, of shape [height, width, 3].
        cv2: The module of OpenCV.
        antialias: Whether to use the filter; otherwise each pixel is interpolated from four.
    """
    high, wide = slot.shape[:2]
    if part.shape == slot.shape:
        np.copyto(slot, part)
    elif antialias and (part.shape[0] > high or part.shape[1] > wide):
        import torch

        pixels = torch.from_numpy(np.require(part, requirements=("C", "W"))).permute(2, 0, 1)[None]
        with torch.inference_mode():
            small = torch.nn.functional.interpolate(pixels, (high, wide), mode="bilinear", antialias=True)
        np.copyto(slot, small[0].permute(1, 2, 0).numpy())
    else:
        cv2.resize(part, (wide, high), dst=slot, interpolation=cv2.INTER_LINEAR)


def _by_pil(data: memoryview, mode: str) -> NDArray[Any]:
    try:
        with pil().open(io.BytesIO(data)) as image:
            found: NDArray[Any] = np.array(image if image.mode == mode else image.convert(mode))
    except EnvironmentFault:
        raise
    except Exception as error:
        raise UndecodablePicture(f"Pillow cannot decode it: {error}") from error
    return found


def libraries() -> tuple[Any, Any]:
    """Import simplejpeg and OpenCV.

    Raises:
        EnvironmentFault: One of them is not installed.
    """
    try:
        import cv2
        import simplejpeg
    except ImportError as error:
        raise EnvironmentFault(f"decoding images needs {error.name}: pip install 'paceline[data]'") from error
    return simplejpeg, cv2


def decoder_for(columns: Sequence[Column], *, exact: bool) -> Decoder | None:
    """Return a decoder if any column has images, else None."""
    return Decoder(exact=exact) if any(column.kind == "image" for column in columns) else None


def value_of(column: Column, data: memoryview, decoder: Decoder | None) -> Any:
    """Return the value of stored bytes by the kind of the column: pixels, an array, JSON, text, or bytes."""
    if column.kind == "image":
        assert decoder is not None
        return decoder.image(data, column.mode)
    if column.kind == "array":
        array = np.load(io.BytesIO(data), allow_pickle=False)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if column.kind == "json":
        return msgspec.json.decode(data)
    return bytes(data).decode() if column.kind == "text" else bytes(data)
