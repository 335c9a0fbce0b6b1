"""Crops: the box of each image in a batch, and whether the image is mirrored, from random numbers of each sample.

`RandomResizedCrop` is that of "Going deeper with convolutions" (Szegedy et al., CVPR 2015), as in torchvision: up to
ten random areas and aspect ratios are tried, and if no box fits, the largest box in the middle is used.
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
    """Boxes in images, in pixels; each array has one number for each image."""

    top: Numbers
    left: Numbers
    height: Numbers
    width: Numbers
    mirrored: NDArray[np.bool_]


@runtime_checkable
class Crop(Protocol):
    """Chooses a box of each image."""

    @property
    def size(self) -> int:
        """The side of the resulting square image, in pixels."""

    @property
    def draws(self) -> int:
        """The number of random numbers for each image."""

    def boxes(self, height: Numbers, width: Numbers, drawn: Floats) -> Boxes:
        """Return the box of each image, and whether to mirror it.

        Args:
            height: The height of each image, in pixels.
            width: The width of each image, in pixels.
            drawn: Random numbers in [0, 1), of shape [images, draws].
        """


def antialiases(crop: Crop) -> bool:
    """Return whether a crop shrinks images with a filter; crops without an attribute `antialias` do."""
    return bool(getattr(crop, "antialias", True))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of random area and aspect ratio, resized to `size` x `size` pixels; for training."""

    size: int
    scale: tuple[float, float] = (0.08, 1.0)  # the range of the box's area, relative to the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # the range of width / height
    mirror: float = 0.5  # the probability of mirroring
    antialias: bool = True  # average all pixels when shrinking, as PIL and torchvision do; False is faster

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1)

    @property
    def draws(self) -> int:
        """The number of random numbers for each image: two for each try, two for the position, one for mirroring."""
        return 2 * _TRIES + 3

    def boxes(self, height: Numbers, width: Numbers, drawn: Floats) -> Boxes:
        """Return the box of each image, and whether to mirror it."""
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
        """Return the height and width of the largest box whose aspect ratio is allowed."""
        low, high = self.ratio
        tall, wide = width < low * height, width > high * height
        h = np.where(tall, np.rint(width / low), height).astype(np.int64)
        w = np.where(wide, np.rint(height * high), width).astype(np.int64)
        return np.maximum(1, np.minimum(h, height)), np.maximum(1, np.minimum(w, width))


@dataclass(frozen=True)
class CenterCrop:
    """The middle of the image, as if its shorter side became `resize` pixels and `size` were kept; for evaluation."""

    size: int
    resize: int = 256
    antialias: bool = True  # as in RandomResizedCrop

    def __post_init__(self) -> None:
        whole_number("size", self.size, 1)
        whole_number("resize", self.resize, 1)

    @property
    def draws(self) -> int:
        """The number of random numbers for each image, which is 0."""
        return 0

    def boxes(self, height: Numbers, width: Numbers, drawn: Floats) -> Boxes:
        """Return the box of each image, and whether to mirror it."""
        short = np.minimum(height, width)
        side = np.maximum(1, np.minimum(np.rint(short * self.size / self.resize).astype(np.int64), short))
        mirrored = np.zeros(len(height), np.bool_)
        return Boxes((height - side) // 2, (width - side) // 2, side, side, mirrored)
