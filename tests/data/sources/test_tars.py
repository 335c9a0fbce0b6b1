"""Tars of WebDataset: each sample once with all of its files, from the first byte of a tar to its last, or an error."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest

from paceline.core.errors import UsageError
from paceline.data.convert.convert import Options, convert
from paceline.data.sources import BadSample
from paceline.data.sources.found import source_of


def tar(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            head = tarfile.TarInfo(name)
            head.size = len(name)
            archive.addfile(head, io.BytesIO(name.encode()))
    return made.getvalue()


def samples(source) -> dict[str, dict[str, str]]:
    found = {}
    for number in range(len(source)):
        values = {name: value.data.decode() for name, value in source.sample(number).items() if value is not None}
        found[source.name(number).partition("/")[2]] = values
    return found


def written(folder, data: bytes, packed: bool):
    path = folder / ("a.tar.gz" if packed else "a.tar")
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


ARRAY = io.BytesIO()
np.save(ARRAY, np.arange(3))
GOOD = {"cls": b"7", "float": b" -inf\n", "txt": b"", "json": b"{}", "npy": ARRAY.getvalue()}
PACKED = pytest.mark.parametrize("packed", [False, True])
BLOCK = tarfile.BLOCKSIZE


@PACKED
@pytest.mark.parametrize("names", [("0.txt", "1.txt", "0.json"), ("d/0.txt", "0.txt", "d/0.json")])
def test_files_of_a_sample_that_do_not_follow_each_other_are_refused(tmp_path, names, packed):
    with pytest.raises(UsageError, match=f"{names[2]} does not follow the other files of sample .*--sort=name"):
        source_of(written(tmp_path, tar(*names), packed), None)


@PACKED
def test_keys_of_other_folders_and_tars_are_other_samples(tmp_path, packed):
    path = written(tmp_path, tar("a/0.txt", "a/0.json", "b/0.txt"), packed)
    (tmp_path / "b.tar").write_bytes(tar("a/0.txt"))
    assert samples(source_of(path, None)) == {"a/0": {"txt": "a/0.txt", "json": "a/0.json"}, "b/0": {"txt": "b/0.txt"}}
    assert len(source_of(tmp_path, None)) == 3


@PACKED
@pytest.mark.parametrize("between", [0, BLOCK, 1 << 21])  # zeros between two tars
def test_tars_behind_each_other_are_read_to_the_last(tmp_path, packed, between):
    data = tar("0.txt", "1.txt") + bytes(between) + tar("2.txt") + tar("3.txt", "3.json")
    source = source_of(written(tmp_path, data, packed), None)
    expected = {str(number): {"txt": f"{number}.txt"} for number in range(4)}
    expected["3"]["json"] = "3.json"
    assert (samples(source), source.notes) == (expected, [])


@PACKED
@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[: 2 * BLOCK] + b"x" * BLOCK + data[3 * BLOCK :],  # the second header
        lambda data: data + b"more",
        lambda data: data + b"x" * 2 * BLOCK,
        lambda data: data[: 2 * BLOCK + 100],  # in the second header
        lambda data: data[: 3 * BLOCK + 2],  # in the second file
    ],
)
def test_a_tar_that_is_damaged_or_cut_off_is_refused(tmp_path, packed, harm):
    with pytest.raises(UsageError, match="a.tar.* cannot be read as a tar"):
        source_of(written(tmp_path, harm(tar("0.txt", "1.txt", "2.txt")), packed), None)


@pytest.mark.parametrize(
    "kind, advice", [(tarfile.GNUTYPE_SPARSE, "without tar --sparse"), (tarfile.SYMTYPE, "--deref")]
)
def test_files_without_all_bytes_of_their_own_are_refused(tmp_path, kind, advice):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        head = tarfile.TarInfo("0.txt")
        head.type = kind
        archive.addfile(head)
    with pytest.raises(UsageError, match=advice):
        source_of(tmp_path / "a.tar", None)


@PACKED
def test_a_tar_without_an_end_is_told(tmp_path, packed):
    source = source_of(written(tmp_path, tar("0.txt", "1.txt")[: 2 * BLOCK], packed), None)
    assert list(samples(source)) == ["0"]
    assert [note for note in source.notes if "has no mark at its end" in note]


@pytest.mark.parametrize(
    "name, data, said",
    [
        ("0.float", b"1e400", "would become inf"),
        ("0.float", b"1e-400", "would become 0.0"),
        ("0.float", b"9007199254740993", "would become 9007199254740992.0"),
        ("0.float", b"none", "no decimal number"),
        ("0.cls", b"0.5", "no whole number; files of decimal numbers are NAME.float"),
        ("0.cls", b"1_0", "would become 10"),
        ("0.cls", "1\u0660".encode(), "would become 10"),  # Python reads digits of other scripts
        ("0.txt", b"caf\xe9", "txt is not UTF-8 text"),
        ("0.json", b"\xff", "json is not UTF-8 text"),
        ("0.npy", b"no array", "npy is not an array of NumPy"),
    ],
)
def test_files_that_no_loader_could_read_are_damaged_samples(tmp_path, name, data, said):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for own, content in ((name, data), ("1" + name[1:], GOOD[name[2:]])):
            head = tarfile.TarInfo(own)
            head.size = len(content)
            archive.addfile(head, io.BytesIO(content))
    source = source_of(tmp_path / "a.tar", None)
    with pytest.raises(BadSample, match=said):
        convert(source, tmp_path / "out", Options(), 1, lambda done, whole: None)
    made = convert(source, tmp_path / "out", Options(on_error="skip"), 1, lambda done, whole: None)
    assert (made.contents.samples, len(made.skipped)) == (1, 1)
