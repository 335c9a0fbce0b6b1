"""`paceline data convert` writes into a store; fsspec serves a local folder in its place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tests.data.making import folder_of_pictures

from paceline.core.errors import UsageError
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.remote.copies import check_empty, staging_folder

pytest.importorskip("fsspec")


def convert(folder, source, *options: str) -> subprocess.CompletedProcess[str]:
    url = f"local://{folder}/store/photos"
    command = [sys.executable, "-m", "paceline", "data", "convert", source, url, "--processes", "1", *options]
    environment = {**os.environ, "PACELINE_CACHE": str(folder / "cache" / "shards")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_what_could_not_be_sent_is_sent_by_the_same_command_and_by_no_other(tmp_path):
    folder_of_pictures(tmp_path / "first", 4)
    folder_of_pictures(tmp_path / "second", 9)
    (tmp_path / "store").write_text("no folder can be made here")
    done = convert(tmp_path, "first")
    assert done.returncode == 2 and "are sent when the command is repeated" in done.stderr, done.stderr
    (tmp_path / "store").unlink()
    done = convert(tmp_path, "second")
    assert done.returncode == 0, done.stderr
    assert len(ShardedDataset(tmp_path / "store" / "photos")) == 9
    done = convert(tmp_path, "first")
    assert done.returncode == 2 and "holds a data set" in done.stderr
    assert len(ShardedDataset(tmp_path / "store" / "photos")) == 9
    for path in (tmp_path / "store" / "photos").iterdir():
        path.unlink()
    done = convert(tmp_path, "first")
    assert done.returncode == 0 and "an earlier command has converted this source" in done.stderr
    assert len(ShardedDataset(tmp_path / "store" / "photos")) == 4
    assert not list((tmp_path / "cache").rglob("*.tar"))


def test_a_part_that_was_sent_is_sent_again_and_a_data_set_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    url = f"local://{tmp_path}/store"
    assert staging_folder(url, "a") != staging_folder(url, "b")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "shard-000000.tar").write_bytes(b"a part")
    with pytest.raises(UsageError, match="is not empty"):
        check_empty(url, {})
    check_empty(url, {}, partly_sent=True)
    (tmp_path / "store" / "dataset.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a data set"):
        check_empty(url, {}, partly_sent=True)
