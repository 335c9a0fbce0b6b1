"""Caches of decoded pictures: the same batches, without decoding; whatever happens to memory or disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.making import converted, jpeg

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.convert.convert import Options, convert
from paceline.data.loader.loader import Loader
from paceline.data.reading.cache_offer import cache_offer
from paceline.data.reading.crops import CenterCrop, RandomResizedCrop
from paceline.data.reading.pictures import Decoder
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.stages import Spent
from paceline.data.sources.image_folder import image_folder

CROPS = [RandomResizedCrop(32), CenterCrop(32)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 60, restart_marker_rows=1)


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """How often something was decoded."""
    count = [0]
    original = Decoder._decoded

    def counting(self, data, pixels):
        count[0] += 1
        return original(self, data, pixels)

    monkeypatch.setattr(Decoder, "_decoded", counting)
    return count


def epochs(loader: Loader, count: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    return [[(images.clone(), labels.clone()) for images, labels in loader] for _ in range(count)]


def alike(one, other) -> bool:
    pairs = [pair for left, right in zip(one, other, strict=True) for pair in zip(left, right, strict=True)]
    return all(torch.equal(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("where", ["ram", "disk"])
def test_batches_are_the_same_and_nothing_is_decoded_twice(tmp_path, shards, decoded, crop, exact, where):
    plain = epochs(Loader(shards, 8, True, crop, exact=exact, threads=2), 3)
    place = "ram" if where == "ram" else str(tmp_path / "cache")
    cached = Loader(shards, 8, True, crop, exact=exact, threads=2, decoded_cache=place)
    first = epochs(cached, 1)
    before = decoded[0]
    assert alike(plain, first + epochs(cached, 2))
    assert decoded[0] == before
    use = cached.report().cache
    assert (use.samples, use.trouble) == (60, None)
    assert 0 < use.bytes <= use.most_bytes
    read_before = sum(stage.samples for stage in cached.report().stages if stage.name == "read")
    list(cached)
    assert sum(stage.samples for stage in cached.report().stages if stage.name == "read") == read_before
    cached.close()


def test_the_next_run_finds_what_is_on_the_disk(tmp_path, shards, decoded):
    settings = {"decoded_cache": str(tmp_path), "threads": 2}
    first = Loader(shards, 8, True, RandomResizedCrop(32), **settings)
    made = epochs(first, 1)
    first.close()
    before = decoded[0]
    again = Loader(shards, 8, True, RandomResizedCrop(32), **settings)
    assert alike(made, epochs(again, 1))
    assert decoded[0] == before
    list(Loader(shards, 8, True, CenterCrop(16), **settings))  # another kind is kept apart
    assert decoded[0] > before
    assert len(list(tmp_path.glob("pixels-*"))) == 2


def test_what_was_damaged_on_the_disk_is_decoded_again(tmp_path, shards):
    plain = epochs(Loader(shards, 8, True, RandomResizedCrop(32)), 1)
    cached = Loader(shards, 8, True, RandomResizedCrop(32), decoded_cache=str(tmp_path))
    epochs(cached, 1)
    cached.close()
    for pixels in tmp_path.rglob("*.pixels"):
        data = bytearray(pixels.read_bytes())
        data[:: len(data) // 50] = bytes(255 - value for value in data[:: len(data) // 50])
        pixels.write_bytes(data[: len(data) // 2])
    assert alike(plain, epochs(Loader(shards, 8, True, RandomResizedCrop(32), decoded_cache=str(tmp_path)), 1))


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_no_more_than_it_may_is_kept(tmp_path, shards, where):
    place, most = "ram" if where == "ram" else str(tmp_path), 1 << 18
    cached = Loader(shards, 8, True, RandomResizedCrop(32), decoded_cache=place, decoded_cache_bytes=most)
    plain = Loader(shards, 8, True, RandomResizedCrop(32))
    assert alike(epochs(plain, 2), epochs(cached, 2))
    use = cached.report().cache
    largest = 3 * 68 * 63
    assert most - 2 * largest <= use.bytes <= most
    assert 0 < use.samples < 60


def test_a_disk_that_is_full_ends_the_keeping_and_not_the_training(tmp_path, shards, monkeypatch):
    original, left = os.pwrite, [5]

    def full(file, data, offset):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(file, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    cached = Loader(shards, 8, True, RandomResizedCrop(32), decoded_cache=str(tmp_path))
    plain = Loader(shards, 8, True, RandomResizedCrop(32))
    assert alike(epochs(plain, 2), epochs(cached, 2))
    use = cached.report().cache
    assert use.samples == 5
    assert "No space left on device" in use.trouble and str(tmp_path) in use.trouble


def test_what_cannot_be_a_cache(tmp_path, shards):
    with pytest.raises(UsageError, match="give RandomResizedCrop or CenterCrop"):
        Loader(shards, 8, decoded_cache="ram")
    file = Path(tmp_path / "file")
    file.write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be used"):
        Loader(shards, 8, transform=CenterCrop(16), decoded_cache=str(file))


def test_bad_samples_are_skipped_beside_a_cache(tmp_path):
    folder = converted(tmp_path, 24).folder
    shard = next(folder.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 255
    shard.write_bytes(data)
    loader = Loader(folder, 8, True, RandomResizedCrop(32), decoded_cache="ram", on_error="skip")
    sizes = [len(labels) for _ in range(2) for _, labels in loader]
    assert sizes == 6 * [8]
    assert loader.report().cache.samples == 24 - loader.report().bad_samples // 2
    assert np.isfinite(loader.report().cache.bytes)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> ShardedDataset:
    """Pictures as large as photographs are: decoding is most of the work."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "pictures" / "all").mkdir(parents=True)
    for number in range(12):
        (folder / "pictures" / "all" / f"{number}.jpg").write_bytes(jpeg(480, 640, number))
    options = Options(shard_bytes=1 << 20, verbatim=True)
    convert(image_folder(folder / "pictures"), folder / "shards", options, 1, lambda done, whole: None)
    return ShardedDataset(folder / "shards")


def test_a_cache_is_offered_with_what_it_costs_and_saves(photographs):
    loader = Loader(photographs, 4, True, RandomResizedCrop(64))
    assert loader.report().offer is None  # nothing is known yet
    list(loader)
    offer = loader.report().offer
    assert offer.bytes == 12 * 3 * 480 * 640
    assert "ram" in offer.fits
    assert 0.3 * offer.of_cpu_s <= offer.saves_cpu_s < offer.of_cpu_s
    middle = Loader(photographs, 4, True, CenterCrop(64))
    list(middle)
    assert middle.report().offer.bytes == 12 * 3 * 64 * 64
    cached = Loader(photographs, 4, True, RandomResizedCrop(64), decoded_cache="ram")
    list(cached)
    assert cached.report().offer is None


def test_no_cache_is_offered_where_decoding_takes_little(photographs):
    costs = {name: Spent(wall_s=1.0, cpu_s=cpu_s, samples=10) for name, cpu_s in {"decode": 0.2, "lookup": 0.8}.items()}
    assert cache_offer(photographs, "image", None, costs) is None
    costs["lookup"].cpu_s = 0.4
    assert cache_offer(photographs, "image", None, costs).saves_cpu_s == pytest.approx(0.02)
