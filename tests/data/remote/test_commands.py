"""`paceline data` with the URL of a data set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data.making import converted
from tests.data.remote import stores
from tests.data.remote.stores import Served, always, serving

from paceline.core.errors import UsageError
from paceline.data.convert.verify import verify
from paceline.data.format.index import DamagedData
from paceline.data.reading.sharded import SamplePlace, ShardedDataset
from paceline.data.reading.token_dataset import TokenDataset


@pytest.fixture
def store(tmp_path):
    with serving(converted(tmp_path, 40, restart_marker_rows=1).folder, "photos") as served:
        yield served


def data(store: Served, folder: Path, verb: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", "data", verb, store.url, *map(str, arguments)]
    environment = {**os.environ, "PACELINE_CACHE": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_inspected(store, tmp_path):
    done = data(store, tmp_path, "inspect")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{store.url}: 40 samples, ")
    assert "image (image): 35 jpg, 5 png" in done.stdout
    assert not any(name.endswith(".tar") for name in store.asked)
    assert not (tmp_path / "cache").exists()


def test_verified(store, tmp_path):
    done = data(store, tmp_path, "verify")
    assert (done.returncode, done.stdout.startswith("40 samples, ")) == (0, True), done.stderr
    done = data(store, tmp_path, "verify", "--repair")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--repair cannot write to" in done.stderr


def test_all_that_is_damaged_is_named(store, tmp_path):
    """A shard that is not there, one that is cut off, an index that is another."""
    shards = ShardedDataset(store.folder).contents.shards
    (store.folder / shards[0].file).unlink()
    path = store.folder / shards[1].file
    path.write_bytes(path.read_bytes()[:-5000])
    (store.folder / shards[2].index).write_bytes(bytes(shards[2].index_bytes))
    found = verify(ShardedDataset(store.url, cache=False), lambda done, whole: None)
    assert found.samples < 40 - shards[0].samples - shards[2].samples
    for number, said in ((0, "there is no such object"), (1, "bytes, but "), (2, "is damaged")):
        name = shards[number].index if number == 2 else shards[number].file
        assert any(name in text and said in text for text in found.problems), found.problems


def test_nothing_is_written_elsewhere(store, tmp_path):
    path = store.folder / "dataset.json"
    path.write_text(path.read_text().replace("shard-000000.tar", "../elsewhere.tar"))
    with pytest.raises(DamagedData, match="lists shards that are not in its folder: '../elsewhere.tar'"):
        ShardedDataset(store.url, cache=False)


def test_measured(store, tmp_path):
    arguments = ("--batch-size", 8, "--size", 32, "--rounds", 1, "--threads", 1, "--json", "bench.json")
    done = data(store, tmp_path, "bench", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["dataset"], found["samples"]) == (store.url, 40)
    assert "fetch" in {stage["name"] for stage in found["stages"]}
    assert "object storage: " in done.stdout and "0 of them repeated" in done.stdout
    assert list((tmp_path / "cache").rglob("index"))


def test_what_needs_a_folder_says_so(store):
    remote = ShardedDataset(store.url, cache=False)
    with pytest.raises(UsageError, match="copy it to a folder first"):
        remote.file(0)
    with pytest.raises(UsageError, match="copy it to a folder"):
        TokenDataset(store.url, 8)


def test_samples_one_by_one(store):
    local, remote = ShardedDataset(store.folder), ShardedDataset(store.url, cache=False, tries=1)
    places = [SamplePlace(0, row) for row in range(local.contents.shards[0].samples)]
    assert [remote.payload("image", one) for one in places] == [local.payload("image", one) for one in places]
    assert store.asked[local.contents.shards[0].file] == 1  # what was fetched last is in memory
    store.fault = always(stores.busy, local.contents.shards[1].file)
    with pytest.raises(DamagedData, match="503"):
        remote.payload("image", SamplePlace(1, 0))
