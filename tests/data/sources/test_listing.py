"""Folders that cannot be listed as a whole, and what lies in them that is no file: refused by name, never left out."""

from __future__ import annotations

import os
import socket
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from tests.data.making import jpeg

from paceline.cli.data.convert import command
from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.convert import convert as convert_module
from paceline.data.convert import token_shards
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


def write_sample(kind, folder, number):
    """Write a sample of a kind, as a file of its own or a row, and return the name of the file."""
    names = {"images": f"a/{number}.jpg", "tars": f"{number}.tar", "text": f"{number}.jsonl", "table": f"{number}.jpg"}
    path = folder / names.get(kind, f"{number}.{kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jpg":
        path.write_bytes(jpeg(8, 8, number))
    elif kind == "tars":
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))
    elif kind == "npy":
        np.save(path, np.arange(3))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"a": [number]}), path)
    else:
        path.write_text('{"text": "a"}\n')
    if kind == "table":
        with (folder / "table.csv").open("a") as file:
            file.write(f"{path.name}\n" if number else f"path\n{path.name}\n")
    return path.name


@pytest.mark.parametrize("kind", ["images", "tars", "npy", "parquet", "table", "text"])
@pytest.mark.parametrize("does", ["added", "removed", "nothing"])
def test_a_folder_that_gets_or_loses_files_while_it_is_converted_is_refused(tmp_path, monkeypatch, kind, does):
    folder = tmp_path / "in"
    for number in range(2):
        write_sample(kind, folder, number)
    module, name = (token_shards, "_written") if kind == "text" else (convert_module, "_converted")
    convert_all, said = getattr(module, name), []

    def changing(*arguments):
        made = convert_all(*arguments)
        if does == "added":
            said.append(write_sample(kind, folder, 2))
        elif does == "removed":
            said.append(write_sample(kind, folder, 1))
            (folder / "a" / said[0] if kind == "images" else folder / said[0]).unlink()
        return made

    monkeypatch.setattr(module, name, changing)
    source = folder / "table.csv" if kind == "table" else folder
    more = ["--tokenizer", "bytes"] if kind == "text" else []
    done = CliRunner().invoke(command, [str(source), str(tmp_path / "out"), *more], standalone_mode=False)
    if does == "nothing":
        assert done.exception is None, done.exception
        return
    assert isinstance(done.exception, UsageError) and "changed while it was converted" in str(done.exception)
    if kind not in ("table", "text"):
        assert f"1 file was {does}" in str(done.exception) and said[0] in str(done.exception)
    assert not [path for path in (tmp_path / "out").glob("*.json") if not path.name.startswith(".")]


@pytest.mark.parametrize("kind", ["images", "text"])
def test_all_samples_that_were_skipped_are_listed_in_a_file(tmp_path, kind):
    (tmp_path / "in" / "a").mkdir(parents=True)
    bad = b"no" if kind == "images" else b"\xff"
    good = jpeg(8, 8) if kind == "images" else b"text"
    suffix = "jpg" if kind == "images" else "txt"
    for number in range(31):
        (tmp_path / "in" / "a" / f"new\nline{number:02d}.{suffix}").write_bytes(bad if number else good)
    more = ["--tokenizer", "bytes"] if kind == "text" else []
    arguments = [str(tmp_path / "in"), str(tmp_path / "out"), "--on-error", "skip", *more]
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.exception is None and "30 skipped" in done.stdout
    shown = done.stderr.splitlines()
    assert sum("paceline: skipped " in line for line in shown) == 8
    assert f"paceline: 30 samples skipped, all listed in {tmp_path}/out/skipped.txt" in shown
    listed = (tmp_path / "out" / "skipped.txt").read_text().splitlines()
    assert len(listed) == 30
    assert all(any(f"new\\nline{number:02d}" in line for line in listed) for number in range(1, 31))


@pytest.mark.parametrize("below", ["cat", "."])
@pytest.mark.parametrize(
    "folders, is_refused", [(["train", "Val"], True), (["train", "car"], False), (["test"], False)]
)
def test_folders_of_splits_do_not_become_classes(tmp_path, below, folders, is_refused):
    for folder in folders:
        (tmp_path / folder / below).mkdir(parents=True)
        (tmp_path / folder / below / "0.jpg").write_bytes(jpeg(8, 8))
    if is_refused:
        with pytest.raises(UsageError, match="look like splits.*name one of them, such as .*Val"):
            source_of(tmp_path, None)
    else:
        assert source_of(tmp_path, None).classes == sorted(folders)


@pytest.mark.parametrize(
    "names, said",
    [
        (["train-00000-of-00001", "test-00000-of-00001"], "test, train"),
        (["a_train_0", "a_val_0"], "train, val"),
        (["train-0", "train-1"], None),
        (["trains", "tested"], None),
    ],
)
def test_files_of_several_splits_are_told(tmp_path, names, said):
    for name in names:
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / f"{name}.parquet")
    notes = source_of(tmp_path, None).notes
    assert [note.partition(" become")[0] for note in notes] == ([f"files of the splits {said}"] if said else [])
