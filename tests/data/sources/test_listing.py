"""Folders that cannot be listed as a whole, and what lies in them that is no file: refused by name, never left out."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest
from tests.data.making import jpeg

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.convert.convert import Options, convert
from paceline.data.sources import BadSample
from paceline.data.sources.files import files_below
from paceline.data.sources.found import source_of
from paceline.data.sources.text import documents


def folder_of(kind, folder):
    """A folder with a sample of a kind, and a function that lists all of its samples."""
    folder.mkdir()
    if kind == "npy":
        np.save(folder / "x.npy", np.arange(3))
    elif kind == "text":
        (folder / "a.txt").write_text("text")
    else:
        (folder / "a").mkdir()
        (folder / "a" / "0.jpg").write_bytes(jpeg(8, 8))
    return (lambda: list(documents(folder))) if kind == "text" else (lambda: len(source_of(folder, None)))


@pytest.mark.parametrize("kind", ["images", "text"])
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch, kind):
    listed = folder_of(kind, tmp_path / "in")
    (tmp_path / "in" / "closed").mkdir()
    scandir = os.scandir

    def refusing(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    listed()
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(EnvironmentFault, match="cannot list the folder .*closed: Permission denied"):
        listed()


@pytest.mark.parametrize("kind", ["images", "npy", "text"])
@pytest.mark.parametrize("target", ["gone", "link"])  # nothing, and the link itself
def test_a_link_that_may_have_been_a_folder_is_an_error(tmp_path, kind, target):
    listed = folder_of(kind, tmp_path / "in")
    (tmp_path / "in" / ".hidden").symlink_to("gone")
    listed()
    (tmp_path / "in" / "link").symlink_to(target)
    with pytest.raises(UsageError, match="link is a link that leads nowhere"):
        source_of(tmp_path / "in", None).notes  # noqa: B018
        listed()


def test_folders_that_link_to_each_other_are_an_error(tmp_path):
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / one).mkdir()
        (tmp_path / one / "link").symlink_to(tmp_path / other)
    with pytest.raises(UsageError, match="a/link/link is a link to a folder that it lies in"):
        list(files_below(tmp_path))


def pipe(path) -> None:
    os.mkfifo(path)


def unix_socket(path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # the path of a socket has 107 bytes at most
        made.bind(path.name)


@pytest.mark.parametrize(
    "kind, name", [("images", "a/1.jpg"), ("npy", "y.npy"), ("text", "b.txt"), ("images", "b.tar")]
)
@pytest.mark.parametrize("make, called", [(pipe, "a named pipe"), (unix_socket, "a socket")])
def test_what_is_no_file_is_refused_and_never_opened(tmp_path, monkeypatch, kind, name, make, called):
    monkeypatch.chdir(tmp_path)
    listed = folder_of(kind, tmp_path / "in")
    make(tmp_path / "in" / name)
    with pytest.raises(UsageError, match=f"{name} is {called}, and not a file"):
        listed()


def test_a_pipe_that_a_table_names_is_a_bad_sample(tmp_path):
    (tmp_path / "0.jpg").write_bytes(jpeg(8, 8))
    os.mkfifo(tmp_path / "1.jpg")
    (tmp_path / "a.csv").write_text("path\n0.jpg\n1.jpg\n")
    source = source_of(tmp_path / "a.csv", None)
    with pytest.raises(BadSample, match="1.jpg cannot be read: it is a named pipe"):
        source.sample(1)
    made = convert(source, tmp_path / "out", Options(on_error="skip"), 1, lambda done, whole: None)
    assert (made.contents.samples, len(made.skipped)) == (1, 1)


@pytest.mark.parametrize("name", ["b.npy", "b.parquet", "b.tar"])
def test_a_link_to_nothing_among_files_of_many_samples_is_an_error(tmp_path, name):
    folder_of("npy", tmp_path / "in")
    (tmp_path / "in" / name).symlink_to("gone")
    with pytest.raises(UsageError, match=name):
        len(source_of(tmp_path / "in", None))
