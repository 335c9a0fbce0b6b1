"""Data sets in a store: the same batches as of a folder, whatever the store does, and nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import islice

import pytest
from tests.data.making import converted
from tests.data.remote import stores
from tests.data.remote.stores import always, first, serving

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.index import DamagedData
from paceline.data.loader.loader import Loader
from paceline.data.reading.crops import RandomResizedCrop
from paceline.data.reading.sharded import ShardedDataset

SOON = {"wait_s": 0.01, "request_s": 5.0}  # what is waited between tries here


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 60, restart_marker_rows=1)


@pytest.fixture
def store(shards):
    with serving(shards.folder, "photos") as served:
        yield served


def loader_of(data: object, **settings: object) -> Loader:
    return Loader(data, 8, shuffle=True, transform=RandomResizedCrop(32), **{"threads": 2, "seed": 3, **settings})


def batches(data: object, **settings: object) -> list[tuple[bytes, list[int]]]:
    return [(images.numpy().tobytes(), labels.tolist()) for images, labels in loader_of(data, **settings)]


def sizes(loader: Loader) -> list[int]:
    return [len(images) for images, _ in loader]


def named(sample: dict[str, object]) -> tuple[int, float]:
    return int(sample["image"].sum()), random.random()


def until(said: object, seconds: float = 10.0) -> bool:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not said() and time.monotonic() < end:
        time.sleep(0.02)
    return said()


@pytest.mark.parametrize("settings", [{}, {"threads": 0}, {"rank": 1, "world": 3}])
def test_batches_are_those_of_a_folder(shards, store, settings):
    remote = ShardedDataset(store.url, cache=False, **SOON)
    assert batches(remote, **settings) == batches(shards, **settings)


def test_what_was_fetched_is_kept(shards, store, tmp_path):
    asked = {"dataset.json": 2, "blocks.npy": 2}
    for _ in range(2):
        remote = ShardedDataset(store.url, cache=tmp_path, **SOON)
        assert batches(remote) == batches(shards)
    files = [name for shard in shards.contents.shards for name in (shard.file, shard.index)]
    assert dict(store.asked) == {**asked, **dict.fromkeys(files, 1)}  # each of these shards is one block
    assert remote.remote.counts.from_cache == len(shards.blocks)


def test_a_cache_that_is_smaller_than_the_data_set(shards, store, tmp_path):
    most = sum(shard.bytes for shard in shards.contents.shards) // 3
    for _ in range(2):
        assert batches(ShardedDataset(store.url, cache=tmp_path, cache_bytes=most, **SOON)) == batches(shards)
    assert 0 < sum(path.stat().st_size for path in tmp_path.rglob("*-*") if path.is_file()) <= most


def test_a_store_that_is_asked_in_threads(shards):
    """File systems of fsspec that are not asynchronous; this one is in memory."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in shards.folder.iterdir():
        memory.pipe_file(f"/photos/{path.name}", path.read_bytes())
    assert batches(ShardedDataset("memory://photos", cache=False)) == batches(shards)
    memory.rm(f"/photos/{shards.contents.shards[2].file}")
    with pytest.raises(DamagedData, match="shard-000002.tar, sample .* there is no such object"):
        batches(ShardedDataset("memory://photos", cache=False))


@pytest.mark.parametrize("there, here", [("folder", "store"), ("store", "folder"), ("store", "store")])
def test_a_stop_in_the_middle(shards, store, tmp_path, there, here):
    data = {"folder": shards, "store": ShardedDataset(store.url, cache=tmp_path, **SOON)}
    loader = loader_of(data[there])
    begun = [images.numpy().tobytes() for images, _ in islice(loader, 3)]
    state = loader.state_dict()
    loader.close()
    rest = loader_of(data[here])
    rest.load_state_dict(state)
    whole = [images for images, _ in batches(shards)]
    assert begun + [images.numpy().tobytes() for images, _ in rest] == whole


def label(sample: dict[str, object]) -> object:
    return sample["label"]


def test_a_function_that_draws_nothing_is_not_said_to_draw(shards, store, tmp_path, caplog):
    data = ShardedDataset(store.url, cache=tmp_path / "cache", **SOON)
    loader = Loader(data, 8, columns=["label"], transform=label, collate_fn=list, threads=2)
    assert sum(map(len, loader)) == 60 and "draw random numbers" not in caplog.text


def test_worker_processes_share_what_is_fetched(shards, store, tmp_path):
    remote = ShardedDataset(store.url, cache=tmp_path, **SOON)
    made = [
        [batch[0].tolist() for batch in Loader(data, 8, shuffle=True, transform=named, processes=2)]
        for data in (shards, remote)
    ]
    assert made[0] == made[1]
    assert [store.asked[shard.file] for shard in shards.contents.shards] == [1] * len(shards.contents.shards)


@pytest.mark.parametrize(
    "fault, only",
    [
        (stores.busy, "dataset.json"),
        (stores.cut, "dataset.json"),
        (stores.busy, ".tar"),
        (stores.cut, ".tar"),
        (stores.cut, ".npz"),
        (stores.wrong, ".tar"),
        (stores.silent, ".tar"),
        (stores.stalls_within, ".tar"),
    ],
)
def test_what_passes_is_tried_again(shards, store, fault, only):
    store.fault = first(2, fault, only)
    drawn = random.getstate()
    remote = ShardedDataset(store.url, cache=False, wait_s=0.01, request_s=0.5)
    assert batches(remote) == batches(shards)
    assert random.getstate() == drawn
    whole = 1 if only == "dataset.json" else len(shards.contents.shards)
    assert sum(count for name, count in store.asked.items() if name.endswith(only)) >= whole + 2


@pytest.mark.parametrize(
    "fault, tries, said",
    [
        (stores.busy, 3, r"503.*tried 3 times in .*check the store and the network"),
        (stores.silent, 3, r"no answer within 300 ms; tried 3 times in .*check the store and the network"),
        (stores.refused, 1, r"403.*; give credentials in"),
        (stores.absent, 1, r"there is no such object; was it moved"),
    ],
)
def test_what_stays_is_said(shards, store, fault, tries, said):
    store.fault = always(fault, "shard-000002.tar")
    remote = ShardedDataset(store.url, cache=False, wait_s=0.01, request_s=0.3, tries=3)
    with pytest.raises(DamagedData, match=rf"shard-000002.tar, sample \d+ \(class.*http://.*, bytes [\d,]+ to.*{said}"):
        batches(remote)
    assert store.asked["shard-000002.tar"] == tries


@pytest.mark.parametrize("only", ["shard-000002.tar", "shard-000002.npz"])
@pytest.mark.parametrize("transform", [RandomResizedCrop(32), None])
def test_what_is_lost_is_skipped_and_counted(shards, store, only, transform):
    store.fault = always(stores.busy, only)
    remote = ShardedDataset(store.url, cache=False, tries=2, **SOON)
    collate = None if transform else list
    loader = Loader(remote, 8, shuffle=True, transform=transform, collate_fn=collate, threads=2, on_error="skip")
    assert [len(batch[0] if transform else batch) for batch in loader] == [8] * 7 + [4]
    report = loader.report()
    assert report.bad_samples == shards.contents.shards[2].samples
    assert all(bad.name.startswith("shard-000002.tar, sample") and "503" in bad.why for bad in report.bad)
    assert store.asked[only] == 2  # not again for each batch


def test_a_folder_without_an_index_skips_its_samples(tmp_path):
    local = converted(tmp_path, 60)
    (local.folder / local.contents.shards[1].index).unlink()
    (local.folder / local.contents.shards[2].file).unlink()
    loader = loader_of(local, on_error="skip")
    assert sizes(loader) == [8] * 7 + [4]
    assert loader.report().bad_samples == sum(shard.samples for shard in local.contents.shards[1:3])
    with pytest.raises(DamagedData, match=r"shard-00000[12].tar, sample \d+.* cannot be read: No such file"):
        sizes(loader_of(local))


def test_bytes_that_stay_wrong_are_bad_samples(shards, store):
    store.fault = always(stores.wrong, "shard-000002.tar")
    loader = loader_of(ShardedDataset(store.url, cache=False, **SOON), on_error="skip")
    assert sizes(loader) == [8] * 7 + [4]
    assert loader.report().bad_samples >= shards.contents.shards[2].samples
    assert all("its checksum does not" in bad.why for bad in loader.report().bad)


def test_a_store_that_gives_only_whole_files(store):
    store.fault = always(stores.whole, ".tar")
    with pytest.raises(DamagedData, match="does not support range requests"):
        batches(ShardedDataset(store.url, cache=False, **SOON))


@pytest.mark.parametrize("fault, error", [(stores.absent, UsageError), (stores.busy, EnvironmentFault)])
def test_no_data_set(store, fault, error):
    store.fault = always(fault, "dataset.json")
    with pytest.raises(error, match="dataset.json"):
        ShardedDataset(store.url, tries=2, **SOON)


@pytest.mark.parametrize(
    "url, settings, said",
    [
        ("nothing://there", {}, "Protocol not known: nothing"),
        ("memory://there", {"cash": "/tmp"}, "has no setting cash; settings: cache, cache_bytes"),
        ("memory://there", {"tries": 0}, "tries=0"),
        ("memory://there", {}, "no dataset.json at memory://there"),
        ("/there", {"cache": "/tmp"}, "give a URL"),
    ],
)
def test_what_cannot_be_opened(url, settings, said):
    with pytest.raises(UsageError, match=said):
        ShardedDataset(url, **settings)


def test_blocks_come_ahead_of_time(shards, store):
    """One batch is taken; the store was asked for all that fits in memory."""
    remote = ShardedDataset(store.url, cache=False, **SOON)
    loop = iter(Loader(remote, 4, transform=RandomResizedCrop(32), threads=1))
    next(loop)
    assert until(lambda: sum(store.asked[shard.file] for shard in shards.contents.shards) == len(shards.blocks))
    loop.close()


def test_waiting_for_the_store_is_a_stage(store):
    store.fault = stores.slow
    loader = loader_of(ShardedDataset(store.url, cache=False, **SOON))
    list(loader)
    report = loader.report()
    assert report.slowest == "fetch"
    assert "read" not in {stage.name for stage in report.stages}


@pytest.mark.parametrize("end", ["whole", "broken off", "error"])
def test_nothing_is_left(store, tmp_path, end):
    def names() -> list[str]:
        return [one.name for one in threading.enumerate() if "paceline" in one.name or "_read_ahead" in one.name]

    sizes(loader_of(ShardedDataset(store.url, cache=False, **SOON)))  # fsspec's own thread and files stay
    until(lambda: not names())
    before = len(os.listdir("/proc/self/fd"))
    if end == "error":
        store.fault = always(stores.busy, "shard-000001.tar")
    remote = ShardedDataset(store.url, cache=tmp_path, tries=2, **SOON)
    loader = loader_of(remote)
    if end == "error":
        with pytest.raises(DamagedData):
            sizes(loader)
    else:
        list(islice(loader, None if end == "whole" else 2))
        loader.close()
    assert names() == []
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before), os.listdir("/proc/self/fd")
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".part")] == []


PROGRAM = """
import sys
from paceline.data import Loader, RandomResizedCrop, ShardedDataset
loader = Loader(ShardedDataset(sys.argv[1], cache=sys.argv[2]), 8, transform=RandomResizedCrop(32), threads=2)
print("begins", flush=True)
try:
    for batch in loader: pass
except KeyboardInterrupt:
    import threading
    print([thread.name for thread in threading.enumerate()])
"""


def test_an_interrupt_does_not_wait_for_the_store(store, tmp_path):
    store.fault = always(stores.silent, ".tar")
    command = [sys.executable, "-c", PROGRAM, store.url, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begins\n"
        assert until(lambda: any(name.endswith(".tar") for name in store.asked))
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=15)  # a request may take 30 s, and there are five
    assert (process.returncode, said) == (0, "['MainThread', 'fsspecIO']\n")
