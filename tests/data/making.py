"""Pictures and data sets for tests: small, made by chance, and of every kind that cameras and programs write."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from paceline.data.convert.convert import Options, convert
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources.image_folder import image_folder


def pixels(height: int, width: int, seed: int = 0, colours: int = 3) -> np.ndarray:
    """A picture with soft and sharp parts: waves, an edge, and noise."""
    chance = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / chance.uniform(3, 40) + y / chance.uniform(3, 40) + c) for c in range(colours)]
    made = 128 + 90 * np.stack(waves, -1) + chance.normal(0, 6, (height, width, colours))
    made[height // 3 :, width // 2 :] += 40
    made = made.clip(0, 255).astype(np.uint8)
    return made if colours == 3 else made[..., 0]


def jpeg(height: int, width: int, seed: int = 0, colours: int = 3, **how: object) -> bytes:
    """A JPEG, with what PIL can be told: quality, subsampling, progressive, restart_marker_rows."""
    file = io.BytesIO()
    Image.fromarray(pixels(height, width, seed, colours)).save(file, "JPEG", **{"quality": 90, **how})
    return file.getvalue()


def folder_of_pictures(folder: Path, count: int = 24, classes: int = 3, **how: object) -> Path:
    """A folder of each class; pictures of different sizes, one in seven a PNG."""
    for number in range(count):
        place = folder / f"class{number % classes}"
        place.mkdir(parents=True, exist_ok=True)
        height, width = 40 + 7 * (number % 5), 48 + 5 * (number % 4)
        if number % 7 == 6:
            Image.fromarray(pixels(height, width, number)).save(place / f"{number:03d}.png")
        else:
            (place / f"{number:03d}.jpg").write_bytes(jpeg(height, width, number, **how))
    return folder


def converted(folder: Path, count: int = 24, shard_bytes: int = 1 << 15, **how: object) -> ShardedDataset:
    """Shards of such a folder, with restart markers if they are asked for."""
    source = image_folder(folder_of_pictures(folder / "pictures", count, **how))
    convert(source, folder / "shards", Options(shard_bytes=shard_bytes, verbatim=True), 1, lambda done, whole: None)
    return ShardedDataset(folder / "shards")
