"""`paceline data` as it is typed: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from tests.data.making import converted, folder_of_pictures, jpeg


def data(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "paceline", "data", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_converted_inspected_verified_and_measured(tmp_path):
    folder_of_pictures(tmp_path / "pictures", 30)
    done = data(tmp_path, "convert", "pictures", "shards")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"30 samples in 1 shard, [\d.]+ KiB: shards\n", done.stdout)
    assert "next: paceline data bench shards" in done.stderr
    done = data(tmp_path, "inspect", "shards")
    assert "image (image): 26 jpg, 4 png" in done.stdout
    assert "3 classes: class0, class1, class2" in done.stdout
    done = data(tmp_path, "verify", "shards")
    assert (done.returncode, done.stdout.startswith("30 samples, ")) == (0, True)


def test_what_reading_costs(tmp_path):
    dataset = converted(tmp_path, 32, restart_marker_rows=1)
    arguments = ("--batch-size", 8, "--size", 32, "--rounds", 3, "--threads", 2, "--json", "bench.json")
    done = data(tmp_path, "bench", dataset.folder, *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["schema"] == "paceline.data-bench/1"
    assert (found["samples"], found["batch_size"], found["threads"]) == (32, 8, 2)
    for key in ("samples_per_s", "cpu_ms_per_sample", "decode_limit_cpu_ms", "times_decode_limit"):
        interval = found["intervals"][key]
        assert 0 < interval["low"] <= found[key] <= interval["high"]
        assert interval["count"] == 3
    assert {stage["name"] for stage in found["stages"]} == {"read", "lookup", "decode", "transform"}
    assert "times" in done.stdout and "samples/s (" in done.stdout


@pytest.mark.parametrize("batch_size, counted", [(8, 24), (64, 30)])
def test_only_samples_that_were_read_are_counted(tmp_path, batch_size, counted):
    """Of 30 samples the last batch of 8 is not whole; a batch of 64 is all of them."""
    dataset = converted(tmp_path, 30)
    arguments = ("--batch-size", batch_size, "--size", 16, "--rounds", 1, "--json", "bench.json")
    assert data(tmp_path, "bench", dataset.folder, *arguments).returncode == 0
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["samples"], found["batch_size"]) == (counted, min(batch_size, 30))


def test_bench_with_a_cache_decodes_nothing(tmp_path):
    """Pictures as cameras make them, of which decoding takes most of the time, whatever the machine."""
    place = tmp_path / "pictures" / "one"
    place.mkdir(parents=True)
    for number in range(24):
        (place / f"{number}.jpg").write_bytes(jpeg(480, 640, number))
    assert data(tmp_path, "convert", "pictures", "shards").returncode == 0
    asked = ("--batch-size", 8, "--size", 32, "--rounds", 2, "--json", "bench.json")
    done = data(tmp_path, "bench", "shards", *asked, "--decoded-cache", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert f"cache in {tmp_path / 'cache'}: 24 decoded images" in done.stdout
    found = json.loads((tmp_path / "bench.json").read_text())
    assert (found["decoded_cache"]["samples"], found["decoded_cache_offer"]) == (24, None)
    again = data(tmp_path, "bench", "shards", *asked)
    offer = json.loads((tmp_path / "bench.json").read_text())["decoded_cache_offer"]
    assert 0 < offer["saves_cpu_s"] < offer["of_cpu_s"]
    assert "a cache of decoded images would take" in again.stdout


def test_bench_compares_with_decoding_alone_only_if_the_images_are_jpegs(tmp_path):
    place = tmp_path / "pictures" / "one"
    place.mkdir(parents=True)
    for number in range(8):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(place / f"{number}.png")
    assert data(tmp_path, "convert", "pictures", "shards").returncode == 0
    done = data(tmp_path, "bench", "shards", "--batch-size", 4, "--rounds", 1, "--json", "bench.json")
    assert done.returncode == 0 and "decoding alone" not in done.stdout.replace("\n", " ")
    assert json.loads((tmp_path / "bench.json").read_text())["decode_limit_cpu_ms"] is None


@pytest.mark.parametrize("verb", ["inspect", "verify", "bench"])
def test_a_folder_that_is_none(tmp_path, verb):
    done = data(tmp_path, verb, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "paceline data convert SRC" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_verbs_are_listed(tmp_path):
    done = data(tmp_path, "--help")
    assert all(verb in done.stdout for verb in ("convert", "inspect", "verify", "export", "bench"))


def test_paths_may_begin_with_file(tmp_path):
    folder_of_pictures(tmp_path / "pictures", 6)
    there = tmp_path.as_uri()
    for arguments in (
        ("convert", f"{there}/pictures", f"{there}/shards"),
        ("inspect", f"{there}/shards"),
        ("verify", f"{there}/shards"),
        ("export", "--format", "webdataset", f"{there}/shards", f"{there}/tars"),
        ("merge", f"{there}/shards", f"{there}/shards", f"{there}/all"),
    ):
        done = data(tmp_path, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "pictures", "shards", "tars"]


@pytest.mark.parametrize(
    "arguments", [("merge", "a", "s3://b/c", "d"), ("export", "--format", "hdf5", "a", "s3://b/d")]
)
def test_stores_are_refused_where_a_path_is_needed(tmp_path, arguments):
    done = data(tmp_path, *arguments)
    assert done.returncode == 2 and "is in an object store; this command needs a path on this machine" in done.stderr
    assert list(tmp_path.iterdir()) == []
