"""Whatever is damaged in a data set: an answer that is right, or an error of ours; never wrong bytes."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from PIL import Image
from tests.data.making import converted

from paceline.cli import main
from paceline.core.errors import PacelineError
from paceline.data.convert.verify import verify
from paceline.data.convert.writer import Writer
from paceline.data.format.index import DamagedData
from paceline.data.loader.loader import Loader
from paceline.data.reading.crops import CenterCrop
from paceline.data.reading.sharded import ShardedDataset


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
    assert found == batches(sound)


def places(sound: ShardedDataset) -> dict[str, tuple[str, int]]:
    """A byte of every class: file and offset."""
    shard = sound.contents.shards[1]
    arrays = sound.index(1).arrays
    offset, length = int(arrays["image.offset"][2]), int(arrays["image.length"][2])
    index, told = (sound.folder / shard.index).read_bytes(), (sound.folder / "dataset.json").read_bytes()
    return {
        "head of a tar member": (shard.file, offset - 512 + 3),
        "checksum of a tar head": (shard.file, offset - 512 + 148),
        "head of a JPEG": (shard.file, offset + 1),
        "body of a JPEG": (shard.file, offset + length // 2),
        "last byte of a JPEG": (shard.file, offset + length - 1),
        "padding": (shard.file, offset + length),
        "end of the tar": (shard.file, shard.bytes - 9),
        "labels": (shard.index, index.index(np.array(arrays["label.value"]).tobytes())),
        "offsets": (shard.index, index.index(np.array(arrays["image.offset"]).tobytes()) + 8),
        "checksums": (shard.index, index.index(np.array(arrays["image.crc32"]).tobytes())),
        "names": (shard.index, index.index(arrays["name"].tobytes())),
        "head of an array": (shard.index, index.index(b"NUMPY") + 12),
        "list of an archive": (shard.index, len(index) - 12),
        "blocks": ("blocks.npy", 128 + 8),
        "head of blocks": ("blocks.npy", 30),
        "samples of a shard": ("dataset.json", told.index(b'"samples"', told.index(b'"shards"')) + 11),
        "a class": ("dataset.json", told.index(b"class1")),
        "a kind of column": ("dataset.json", told.index(b'"image"') + 2),
        "a checksum": ("dataset.json", told.index(b'"crc32"') + 10),
    }


@pytest.mark.parametrize("which", range(19))
def test_a_byte_of_every_class_is_found_by_verify_and_never_read_as_another(sound, tmp_path, which):
    folder = tmp_path / "shards"
    shutil.copytree(sound.folder, folder)
    what, (name, place) = list(places(sound).items())[which]
    data = bytearray((folder / name).read_bytes())
    data[place] ^= 1
    (folder / name).write_bytes(data)
    try:
        assert verify(ShardedDataset(folder), lambda done, whole: None).problems, what
        found = batches(ShardedDataset(folder))
    except PacelineError:
        return
    assert found == batches(sound), what


@pytest.mark.parametrize("name", ["shard", "first", "begin", "end"])
@pytest.mark.parametrize("bit", [0, 1, 6, 20, 31])
def test_a_bit_of_the_list_of_blocks_that_changes_is_an_error_of_the_list(sound, tmp_path, name, bit):
    folder = tmp_path / "shards"
    shutil.copytree(sound.folder, folder)
    blocks = np.load(folder / "blocks.npy")
    blocks[name][1] ^= np.array(1 << bit).astype(blocks[name].dtype)
    np.save(folder / "blocks.npy", blocks)
    try:
        assert batches(ShardedDataset(folder)) == batches(sound)  # the bytes of a block may include more
    except PacelineError as error:
        assert bit < 17 or ("blocks.npy is damaged: block" in str(error) and "--repair" in str(error))
    else:
        assert name in ("begin", "end")
    with pytest.raises(SystemExit) as ending:
        main(["data", "verify", "--repair", str(folder)])
    assert ending.value.code == 0
    assert batches(ShardedDataset(folder)) == batches(sound)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_crop_says_which_image_is_missing(tmp_path, on_error):
    with Writer(tmp_path / "shards", images="png") as writer:
        for number in range(8):
            writer.write({"image": None if number == 5 else Image.new("RGB", (20, 10)), "n": number})
    loader = Loader(tmp_path / "shards", 4, transform=CenterCrop(8), threads=1, on_error=on_error)
    if on_error == "raise":
        with pytest.raises(DamagedData, match="sample 5.*: image is missing"):
            list(loader)
    else:
        assert [len(images) for images, _ in loader] == [4, 4] and "missing" in loader.report().bad[0].why


def test_an_index_without_one_of_its_arrays_is_damaged(tmp_path):
    """For example after a bit flip in the directory of the archive."""
    with Writer(tmp_path / "out") as writer:
        for number in range(4):
            writer.write({"i": number, "t": f"text {number}"})
    (path,) = (tmp_path / "out").glob("*.npz")
    with np.load(path) as archive:
        kept = {key: archive[key] for key in archive.files if key != "i.value"}
    np.savez(path, **kept)
    with pytest.raises(DamagedData):
        ShardedDataset(tmp_path / "out")[0]


@pytest.mark.parametrize("numbers", [range(40), range(80), range(100, 140)], ids=["texts", "more", "values"])
def test_shards_of_another_version_are_refused(tmp_path, numbers):
    """Someone copies a new version over an old one, and the copy ends early. Each shard is complete."""
    for name, version, own in (("old", 1, range(40)), ("new", 2, numbers)):
        with Writer(tmp_path / name) as writer:
            for number in own:
                writer.write({"number": number, "text": f"version {version}"})
    for file in ("shard-000000.tar", "shard-000000.npz"):
        shutil.copy(tmp_path / "new" / file, tmp_path / "old" / file)
    with pytest.raises(DamagedData, match="not that of this data set.*copy the whole data set again"):
        list(Loader(ShardedDataset(tmp_path / "old"), 4, transform=None))
