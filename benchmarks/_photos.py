"""Pictures for measurements: parts of photographs that packages ship, with the noise of a sensor, as JPEGs.

There is no labelled set of JPEGs in any package; of what decoding costs these say the same, of learning nothing.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 100
_QUALITIES = (85, 90, 95)
_SHORT = 256  # pixels of the shorter side


def make(folder: Path, count: int, seed: int = 0) -> Path:
    """Write a folder of pictures for each class; nothing, where as many are there."""
    if sum(1 for _ in folder.rglob("*.jpg")) == count:
        return folder
    photos = photographs()
    chance = np.random.default_rng(seed)
    for number in range(count):
        place = folder / f"class{number % CLASSES:03d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06d}.jpg").write_bytes(one(photos, chance))
    return folder


def photographs() -> list[Image.Image]:
    """The colour photographs of scikit-image and scikit-learn."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    own = [data.astronaut(), data.chelsea(), data.coffee(), data.rocket()]
    return [Image.fromarray(array) for array in [*own, *load_sample_images().images]]


def one(photos: list[Image.Image], chance: np.random.Generator) -> bytes:
    """A part of a photograph, 256 pixels on its shorter side, about 27 KB."""
    photo = photos[int(chance.integers(len(photos)))]
    share = chance.uniform(0.5, 1.0)
    wide, high = int(photo.width * share), int(photo.height * share)
    left, top = int(chance.integers(photo.width - wide + 1)), int(chance.integers(photo.height - high + 1))
    scale = _SHORT / min(wide, high)
    size = max(_SHORT, round(wide * scale)), max(_SHORT, round(high * scale))
    part = np.asarray(
        photo.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + wide, top + high)), np.float32
    )
    noisy = part + chance.normal(0, chance.uniform(1, 5), part.shape)
    file = io.BytesIO()
    picture = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    picture.save(file, "JPEG", quality=int(chance.choice(_QUALITIES)), subsampling="4:2:0")
    return file.getvalue()
