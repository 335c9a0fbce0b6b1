"""Crops: boxes of a whole batch at once, and whether each is mirrored, from random numbers of each sample.

`RandomResizedCrop` is the one of "Going deeper with convolutions" (Szegedy et al., CVPR 2015) as torchvision has it:
ten tries of an area and a ratio of sides, and the largest box in the middle where none fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import whole_number

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
_TRIES = 10


@dataclass(frozen=True)
class Boxes:
    """Parts of pictures, in pixels; arrays of one number a picture."""

    top: Numbers
    left: Numbers
    height: Numbers
    width: Numbers
    mirrored: NDArray[np.bool_]


@runtime_checkable
class Crop(Protocol):
    """What is taken of each picture."""

    @property
    def size(self) -> int:
        """Pixels on each side of what is made."""

    @property
    def draws(self) -> int:
        """Random numbers that a picture needs."""

    def boxes(self, height: Numbers, width: Numbers, drawn: Floats) -> Boxes:
        """Choose the parts.

        Args:
            height: Of each picture, in pixels.
            width: Of each picture, in pixels.
            drawn: Numbers from 0 to below 1, of shape [pictures, draws].
        """


def antialiases(crop: Crop) -> bool:
    """Say whether a crop shrinks with a filter; a crop of the user's own does unless it has `antialias = False`."""
    return bool(getattr(crop, "antialias", True))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of random size and shape, made `size` pixels square; for training."""

    size: int
    scale: tuple[float, float] = (0.08, 1.0)  # of the picture's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of width to height
    mirror: float = 0.5  # how probably it is mirrored
    antialias: bool = True  # shrink with a filter that averages all pixels, as PIL and torchvision do; False is faster

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1)

    @property
    def draws(self) -> int:
        """Two for each try, two for the place, one for mirroring."""
        return 2 * _TRIES + 3

    def boxes(self, height: Numbers, width: Numbers, drawn: Floats) -> Boxes:
        """Choose the parts."""
        areas = self.scale[0] + drawn[:, :_TRIES] * (self.scale[1] - self.scale[0])
        low, high = np.log(self.ratio)
        shapes = np.exp(low + drawn[:, _TRIES : 2 * _TRIES] * (high - low))
        pixels = (height * width)[:, None] * areas
        w, h = np.rint(np.sqrt(pixels * shapes)).astype(np.int64), np.rint(np.sqrt(pixels / shapes)).astype(np.int64)
        fits = (w > 0) & (w <= width[:, None]) & (h > 0) & (h <= height[:, None])
        first = np.argmax(fits, axis=1)[:, None]
        w, h = np.take_along_axis(w, first, 1)[:, 0], np.take_along_axis(h, first, 1)[:, 0]
        some = fits.any(axis=1)
        middle_h, middle_w = self._middle(height, width)
        h, w = np.where(some, h, middle_h), np.where(some, w, middle_w)
        room_h, room_w = height - h, width - w
        y, x, mirror = drawn[:, 2 * _TRIES], drawn[:, 2 * _TRIES + 1], drawn[:, 2 * _TRIES + 2]
        top = np.where(some, np.floor(y * (room_h + 1)), room_h // 2).astype(np.int64)
        left = np.where(some, np.floor(x * (room_w + 1)), room_w // 2).astype(np.int64)
        return Boxes(top, left, h, w, mirror < self.mirror)

    def _middle(self, height: Numbers, width: Numbers) -> tuple[Numbers, Numbers]:
        """Return the largest sides whose ratio is allowed."""
        low, high = self.ratio
        tall, wide = width < low * height, width > high * height
        h = np.where(tall, np.rint(width / low), height).astype(np.int64)
        w = np.where(wide, np.rint(height * high), width).astype(np.int64)
        return np.maximum(1, np.minimum(h, height)), np.maximum(1, np.minimum(w, width))


@dataclass(frozen=True)
class CenterCrop:
    """The middle, as if the shorter side were made `resize` pixels and `size` of them were kept; for evaluation."""

    size: int
    resize: int = 256
    antialias: bool = True  # as of RandomResizedCrop

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1)
        whole_number("resize", self.resize, 1)

    @property
    def draws(self) -> int:
        """Nothing is random."""
        return 0

    def boxes(self, height: Numbers, width: Numbers, drawn: Floats) -> Boxes:
        """Choose the parts."""
        short = np.minimum(height, width)
        side = np.maximum(1, np.minimum(np.rint(short * self.size / self.resize).astype(np.int64), short))
        mirrored = np.zeros(len(height), np.bool_)
        return Boxes((height - side) // 2, (width - side) // 2, side, side, mirrored)
