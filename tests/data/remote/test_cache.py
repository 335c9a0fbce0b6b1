"""What is kept of a store: whole, within its bytes, shared by processes, and no reason to stop when a disk is full."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.data.making import converted
from tests.data.remote import stores
from tests.data.remote.stores import first, serving
from tests.data.remote.test_loader import SOON, batches, until

from paceline.core.errors import EnvironmentFault
from paceline.data.format.folders import Stop, Stopped
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.remote import cache as of_cache
from paceline.data.remote.cache import Cache

PIECE = 1000  # bytes of a piece on the disk
DATA = bytes(range(256)) * 3 + bytes(PIECE - 768 - 16)


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 60)


@pytest.fixture
def store(shards):
    with serving(shards.folder, "photos") as served:
        yield served


def there(cache: Cache, name: str) -> bool:
    into = bytearray(len(DATA))
    found = cache.read(name, memoryview(into))
    assert not found or bytes(into) == DATA
    return found


def pieces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("held", "lock"))


def aged(folder: Path, name: str, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(folder / "photos" / name, (at, at))


@pytest.mark.parametrize("damage", ["changed", "cut", "grown", "emptied"])
def test_a_damaged_piece_is_not_used(tmp_path, damage):
    cache = Cache(tmp_path, "photos", 1 << 20)
    assert cache.keep("0/a", DATA) and there(cache, "0/a")
    path = tmp_path / "photos" / "0" / "a"
    data = path.read_bytes()
    changed = data[:5] + b"\xff" + data[6:]
    path.write_bytes({"changed": changed, "cut": data[:-1], "grown": data + b"x", "emptied": b""}[damage])
    assert not there(cache, "0/a")
    assert not path.exists()


def test_damaged_pieces_are_fetched_again(shards, store, tmp_path):
    batches(ShardedDataset(store.url, cache=tmp_path, **SOON))
    store.asked.clear()
    for path in pieces(tmp_path):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert batches(ShardedDataset(store.url, cache=tmp_path, **SOON)) == batches(shards)
    assert store.asked.total() == 2 + 2 * len(shards.contents.shards)


def test_what_was_not_read_for_longest_goes(tmp_path):
    cache = Cache(tmp_path, "photos", 4 * PIECE)
    for number in range(4):
        cache.keep(f"0/{number}", DATA)
        aged(tmp_path, f"0/{number}", 100 - number)
    assert there(cache, "0/0")  # now it was read last
    cache.keep("0/4", DATA)
    assert [path.name for path in pieces(tmp_path)] == ["0", "3", "4"]
    assert cache.most_bytes == 4 * PIECE


def test_data_sets_share_the_budget_and_processes_count_together(tmp_path):
    one, other = Cache(tmp_path, "photos", 4 * PIECE), Cache(tmp_path, "others", 4 * PIECE)
    for number in range(6):
        (one, other)[number % 2].keep(f"0/{number}", DATA)
    assert sum(path.stat().st_size for path in pieces(tmp_path)) <= 4 * PIECE
    assert not one.keep("0/large", DATA * 5)


def test_a_piece_in_use_is_read_to_its_end(tmp_path):
    cache = Cache(tmp_path, "photos", 2 * PIECE)
    cache.keep("0/0", DATA)
    with (tmp_path / "photos" / "0" / "0").open("rb") as file:
        for number in range(1, 4):
            cache.keep(f"0/{number}", DATA)
        assert file.read(len(DATA)) == DATA
    assert not there(cache, "0/0")


def test_what_killed_processes_leave_is_taken_away(tmp_path):
    cache = Cache(tmp_path, "photos", 2 * PIECE)
    (tmp_path / "photos" / "0").mkdir()
    left, alive = (tmp_path / "photos" / "0" / f".{name}.1-1.part" for name in ("left", "alive"))
    left.write_bytes(DATA)
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for number in range(4):
            cache.keep(f"0/{number}", DATA)
        assert (left.exists(), alive.exists()) == (False, True)


def test_a_full_disk_stops_nothing(shards, store, tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(of_cache.os, "writev", full)
    remote = ShardedDataset(store.url, cache=tmp_path, **SOON)
    with pytest.warns(
        RuntimeWarning, match=f"cannot cache blocks in {tmp_path}: No space left.*cache=FOLDER"
    ) as warned:
        assert batches(remote) == batches(shards)
    assert len(warned) == 1
    assert remote.remote.counts.not_kept == 2 * len(shards.contents.shards)
    assert pieces(tmp_path) == []


def test_a_full_disk_makes_room_first(tmp_path, monkeypatch):
    cache = Cache(tmp_path, "photos", 1 << 20)
    for number in range(8):
        cache.keep(f"0/{number}", DATA)
    real, failed = os.writev, []

    def full_once(*arguments: object) -> int:
        if not failed:
            failed.append(True)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(of_cache.os, "writev", full_once)
    assert cache.keep("0/8", DATA) and there(cache, "0/8")
    assert len(pieces(tmp_path)) == 7


def test_where_nothing_can_be_kept(store, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"or none \(cache=False\)"):
        ShardedDataset(store.url, cache=tmp_path / "file" / "cache")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    assert ShardedDataset(store.url).remote.cache is None  # nobody has asked for one
    monkeypatch.setenv("PACELINE_CACHE", "off")
    assert ShardedDataset(store.url).remote.cache is None
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ShardedDataset(store.url).remote.cache is not None
    assert [path.name for path in (tmp_path / "paceline").iterdir()] == ["shards"]


def test_a_data_set_that_is_another_now_is_kept_apart(store, tmp_path):
    with serving(converted(tmp_path / "other", 12).folder, "photos") as other:
        for served in (store, other, store):
            batches(ShardedDataset(served.url, cache=tmp_path / "cache", **SOON))
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2


PROGRAM = """
import sys
from paceline.data.reading.sharded import SamplePlace, ShardedDataset
dataset = ShardedDataset(sys.argv[1], cache=sys.argv[2], wait_s=0.01, request_s=float(sys.argv[3]))
for shard in range(len(dataset.contents.shards)):
    dataset.payload("image", SamplePlace(shard, 0))
print("done", flush=True)
"""


def reading(store: stores.Served, folder: Path, request_s: float = 20.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, store.url, str(folder), str(request_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_fetch_each_piece_once(shards, store, tmp_path):
    store.fault = stores.slow
    with reading(store, tmp_path) as one, reading(store, tmp_path) as other:
        assert (one.communicate()[0], other.communicate()[0]) == ("done\n", "done\n")
    files = [name for shard in shards.contents.shards for name in (shard.file, shard.index)]
    assert {name: store.asked[name] for name in files} == dict.fromkeys(files, 1)


def test_a_killed_process_holds_nobody_up(shards, store, tmp_path):
    store.fault = first(1, stores.silent)
    with reading(store, tmp_path) as killed:
        assert until(lambda: any(name.endswith(".tar") for name in store.asked))
        killed.send_signal(signal.SIGKILL)
    with reading(store, tmp_path) as after:
        assert after.communicate(timeout=10)[0] == "done\n"  # it would wait 40 s for one that is alive


def test_a_turn_is_not_waited_for_without_end(tmp_path):
    cache, other = (Cache(tmp_path, "photos", 1 << 20) for _ in range(2))
    with cache.turn(7, Stop(), 1.0):
        with other.turn(8, Stop(), 30.0):
            pass
        with other.turn(7, Stop(), 0.05):
            pass
        stop = Stop()
        stop.now()
        with pytest.raises(Stopped), other.turn(7, stop, 30.0):
            pass
