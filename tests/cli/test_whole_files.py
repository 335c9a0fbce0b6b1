"""Results that cannot be written to the end: what was there before stays, and nothing half is left."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from paceline.cli.base.outputs import whole, write_text
from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.sources.found import source_of


@pytest.fixture
def little_room():
    """No file may become larger than 4 KiB, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_result_that_does_not_fit_leaves_the_one_before(tmp_path, little_room):
    path = tmp_path / "result.json"
    write_text(path, "before")
    with pytest.raises(EnvironmentFault, match="give a file in another folder"):
        write_text(path, "x" * 10_000)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["result.json"]


def test_a_link_and_a_mode_stay(tmp_path):
    path, link = tmp_path / "result.json", tmp_path / "latest.json"
    write_text(path, "before")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "after")
    assert (path.read_text(), path.stat().st_mode & 0o777, link.is_symlink()) == ("after", 0o640, True)


def test_a_device_is_written_to_as_it_is():
    with whole(Path("/dev/null")) as place:
        place.write_text("gone")
    assert not os.path.isfile("/dev/null")


def test_a_pipe_is_no_source_of_data(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        source_of(tmp_path / "pipe.json", None)
