"""Data sets merged into one: every sample as it was, and nothing of the sources changes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from tests.data.making import converted

from paceline.core.errors import UsageError
from paceline.data import CenterCrop, Loader, ShardedDataset, Writer
from paceline.data.convert.merge import merge
from paceline.data.convert.verify import verify
from paceline.data.format.index import DamagedData


def quiet(done: int, whole: int) -> None:
    pass


def written(folder, *samples, classes=()) -> ShardedDataset:
    with Writer(folder, classes=classes) as writer:
        for sample in samples:
            writer.write(sample)
    return ShardedDataset(folder)


def files_of(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def odd(folder, first: int, number: int | None) -> ShardedDataset:
    """Samples of every kind; `number` may be missing, so that it is optional in one data set only."""
    Image.new("RGB" if number else "L", (9, 8)).save(folder / f"{first}.png")
    image = Image.open(folder / f"{first}.png")
    same = {"id": first, "text": "ä", "bytes": b"\0", "json": [first], "array": np.arange(first), "image": image}
    return written(folder / f"s{first}", {**same, "number": 2.5}, {**same, "id": first + 1, "number": number})


def test_all_samples_are_there_one_after_the_other(tmp_path):
    parts = [odd(tmp_path, 1, 1), odd(tmp_path, 3, None), odd(tmp_path, 5, 3)]
    before = [files_of(part.folder) for part in parts]
    merge(parts, tmp_path / "all", quiet)
    found = ShardedDataset(tmp_path / "all")
    expected = [part[number] for part in parts for number in range(2)]
    assert [found[number]["id"] for number in range(6)] == [1, 2, 3, 4, 5, 6]
    for number, sample in enumerate(expected):
        assert all(str(found[number][name]) == str(value) for name, value in sample.items() if name != "image")
    assert found.contents.column("image").mode == "RGB" and found.contents.column("number").optional
    assert [files_of(part.folder) for part in parts] == before
    done = verify(found, quiet)
    assert (done.samples, list(done.problems)) == (6, [])
    assert len({batch["id"][0].item() for batch in Loader(found, 1, shuffle=True)}) == 6


def test_pictures_are_cropped_as_before(tmp_path):
    parts = [converted(tmp_path / "a", 12), converted(tmp_path / "b", 9)]
    merge(parts, tmp_path / "all", quiet)
    ((images, labels),) = Loader(tmp_path / "all", 21, transform=CenterCrop(16))
    apart = [batch for part in parts for batch in Loader(part, len(part), transform=CenterCrop(16))]
    assert np.array_equal(images.numpy(), np.concatenate([batch[0].numpy() for batch in apart]))
    assert labels.tolist() == [label for batch in apart for label in batch[1].tolist()]


@pytest.mark.parametrize("left", ["nothing", "one shard", "half a shard"])
def test_an_interrupted_merge_goes_on(tmp_path, monkeypatch, left):
    parts = [written(tmp_path / f"{n}", {"x": n}) for n in range(3)]
    merge(parts, tmp_path / "whole", quiet)

    def interrupt(done: int, whole: int) -> None:
        if done >= {"nothing": 1, "one shard": 2, "half a shard": 2}[left]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(parts, tmp_path / "all", interrupt)
    assert not (tmp_path / "all" / "dataset.json").exists()
    if left == "half a shard":
        path = tmp_path / "all" / "shard-000000.tar"
        path.write_bytes(path.read_bytes()[:700])
    merge(parts, tmp_path / "all", quiet)
    assert files_of(tmp_path / "all") == files_of(tmp_path / "whole")


def test_what_does_not_fit_together_is_refused(tmp_path):
    one, other = written(tmp_path / "a", {"x": 1}), written(tmp_path / "b", {"x": "text"})
    more, fewer = written(tmp_path / "c", {"x": 1, "y": 2}), written(tmp_path / "d", {"x": 1}, classes=["cat"])
    for parts, said in (
        ([one], "two data sets or more"),
        ([one, other], r"column x \(int\), and in .* it is text"),
        ([one, more], r"column y \(int\), and in .* it is missing"),
        ([one, fewer], "different classes"),
    ):
        with pytest.raises(UsageError, match=said):
            merge(parts, tmp_path / "all", quiet)
    with pytest.raises(UsageError):
        merge([one, one], one.folder, quiet)
    assert not (tmp_path / "all").exists() and len(one) == len(ShardedDataset(one.folder)) == 1


def test_a_damaged_source_ends_the_merge(tmp_path):
    parts = [written(tmp_path / f"{n}", {"x": f"{n}"}) for n in range(2)]
    path = parts[1].file(0)
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedData, match="paceline data verify"):
        merge(parts, tmp_path / "all", quiet)
    assert not (tmp_path / "all" / "dataset.json").exists()


def test_as_it_is_typed(tmp_path):
    for n in range(2):
        written(tmp_path / f"{n}", {"x": n})
    command = [sys.executable, "-m", "paceline", "data", "merge", "0", "1", "all"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 samples in 2 shards: all\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
