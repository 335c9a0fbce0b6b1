from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.files import host_file, replace_bytes, replacing, sync_folder, user_folder, write_durably


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    for data in (b"first", b"second"):
        replace_bytes(path, data)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_while_the_new_one_is_written(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(b"old")
    with replacing(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_a_durable_write_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    for data in (b"first", b"second"):
        write_durably(path, data)
        assert path.read_bytes() == data
    sync_folder(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_write_that_fails_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as part:
        part.write_bytes(b"torn")
        raise error
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_an_error_before_anything_is_written_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_bytes(tmp_path / "missing" / "note.json", b"")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_STATE_HOME": "/state", "HOME": "/home/me"}, Path("/state/paceline")),
        ({"HOME": "/home/me"}, Path("/home/me/.local/state/paceline")),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/me"}, Path("/home/me/.local/state/paceline")),
        ({"HOME": "relative"}, None),
        ({}, None),
    ],
)
def test_the_state_folder_follows_the_xdg_specification(environment: dict[str, str], folder: Path | None) -> None:
    assert user_folder("state", environment) == folder
    file = host_file("trials", ".jsonl", environment)
    assert (None if file is None else file.parent) == folder


def test_the_cache_folder_is_another() -> None:
    assert user_folder("cache", {"HOME": "/home/me"}) == Path("/home/me/.cache/paceline")
    assert user_folder("cache", {"XDG_CACHE_HOME": "/cache", "HOME": "/home/me"}) == Path("/cache/paceline")
