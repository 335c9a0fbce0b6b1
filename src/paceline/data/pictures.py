"""How does a JPEG become pixels of a batch? Only what its crop needs is decoded, and resized straight into its place.

simplejpeg (libjpeg-turbo) decodes, OpenCV resizes; both let other threads run meanwhile. The scaled decoding of
libjpeg is not used: at any factor but 1/2, 1/4 and 1/8 it is slower than decoding all pixels.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.data.parts import Parts
from paceline.errors import EnvironmentFault

Pixels = NDArray[np.uint8]  # of shape [height, width, 3], red, green, blue


class Box(NamedTuple):
    """A part of one picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class UndecodablePicture(ValueError):
    """Bytes that no decoder makes a picture of."""


class Decoder:
    """Decodes pictures, each thread into memory of its own."""

    def __init__(self, *, exact: bool = False) -> None:
        """Prepare decoding.

        Args:
            exact: As PIL decodes, to the bit; else with the faster transform, and with colours that are not smoothed
                where they are stored coarser than brightness: a few of 255 levels apart, and faster.

        Raises:
            EnvironmentFault: A package is missing.
        """
        self._jpeg, self._cv2 = libraries()
        self._fast = not exact
        self.looks_beyond = exact  # smooth colours look one pixel beyond the borders of a part
        self._own = threading.local()

    def whole(self, data: memoryview) -> Pixels:
        """Decode all of a picture, whatever its format. It lies in memory that this thread's next call uses again.

        Raises:
            UndecodablePicture: It is none.
        """
        if bytes(data[:2]) == b"\xff\xd8":
            try:
                height, width, *_ = self._jpeg.decode_jpeg_header(data)
                return self._decoded(data, height * width)
            except ValueError:
                pass  # four colours, perhaps
        how = self._cv2.IMREAD_COLOR | self._cv2.IMREAD_IGNORE_ORIENTATION  # as PIL opens them, and as they are indexed
        found = self._cv2.imdecode(np.frombuffer(data, np.uint8), how) if len(data) else None
        if found is None:
            raise UndecodablePicture("no image decoder can read it")
        return self._cv2.cvtColor(found, self._cv2.COLOR_BGR2RGB)

    def part(self, data: memoryview, parts: Parts, picture: int, box: Box) -> Pixels:
        """Decode a part of a JPEG that can be cut.

        Args:
            data: The whole file.
            parts: Of the pictures of a batch.
            picture: Its place among them.
            box: What of it is wanted.

        Raises:
            UndecodablePicture: It is damaged.
        """
        try:
            found = self._decoded(parts.alone(picture, data), parts.pixels[picture])
        except ValueError as error:
            raise UndecodablePicture(str(error)) from error
        top, left = parts.tops[picture], parts.lefts[picture]
        return found[top : top + box.height, left : left + box.width]

    def fill(self, slot: Pixels, part: Pixels, *, mirrored: bool) -> None:
        """Write a part of a picture into its place in a batch, resized as that is."""
        high, wide = slot.shape[:2]
        if part.shape == slot.shape:
            np.copyto(slot, part)
        else:
            self._cv2.resize(part, (wide, high), dst=slot, interpolation=self._cv2.INTER_LINEAR)
        if mirrored:
            self._cv2.flip(slot, 1, dst=slot)

    def _decoded(self, data: memoryview | bytearray, pixels: int) -> Pixels:
        scratch = getattr(self._own, "scratch", None)
        if scratch is None or len(scratch) < 3 * pixels:
            scratch = self._own.scratch = np.empty(3 * pixels, np.uint8)
        return self._jpeg.decode_jpeg(data, "RGB", fastdct=self._fast, fastupsample=self._fast, buffer=scratch)


def libraries() -> tuple[Any, Any]:
    """Import what decodes and what resizes.

    Raises:
        EnvironmentFault: It is not installed.
    """
    try:
        import cv2
        import simplejpeg
    except ImportError as error:
        raise EnvironmentFault(f"decoding images needs {error.name}: pip install 'paceline[data]'") from error
    return simplejpeg, cv2
