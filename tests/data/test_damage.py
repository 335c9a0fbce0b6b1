"""Whatever is damaged in a data set: an answer that is right, or an error of ours; never wrong bytes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from tests.data.making import converted

from paceline.data.crops import CenterCrop
from paceline.data.loader import Loader
from paceline.data.sharded import ShardedDataset
from paceline.errors import PacelineError


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 30, restart_marker_rows=1)


def batches(dataset: ShardedDataset) -> list[bytes]:
    return [images.numpy().tobytes() for images, _ in Loader(dataset, 6, transform=CenterCrop(16), threads=1)]


@pytest.mark.parametrize("seed", range(60))
def test_random_damage(sound, tmp_path, seed):
    """Bytes of any of its files are changed, or its end is cut off."""
    chance = np.random.default_rng(seed)
    folder = tmp_path / "shards"
    shutil.copytree(sound.folder, folder)
    files = sorted(folder.iterdir())
    path = files[int(chance.integers(len(files)))]
    data = bytearray(path.read_bytes())
    if chance.random() < 0.3:
        data = data[: int(chance.integers(len(data)))]
    for place in chance.integers(0, max(1, len(data)), int(chance.integers(1, 6))).tolist():
        data[place : place + 1] = bytes([int(chance.integers(256))])
    path.write_bytes(data)
    try:
        found = batches(ShardedDataset(folder))
    except PacelineError as error:
        assert str(error)
        return
    if path.name != "dataset.json":  # what it says of columns and shards is not under a checksum
        assert found == batches(sound)
