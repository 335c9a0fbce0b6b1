"""Folders and tables of files: every column, one list of classes, and a word on what is left out."""

from __future__ import annotations

import pytest
from tests.data.making import folder_of_pictures, jpeg

from paceline.cli import main
from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.data.convert.convert import Options, convert
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources.found import classes_from, source_of
from paceline.data.sources.image_folder import image_folder


def made(source, dest) -> list[dict[str, object]]:
    convert(source, dest, Options(seed=None), 1, lambda done, whole: None)
    return [sample for (sample,) in Loader(dest, 1, transform=dict, collate_fn=list, threads=0)]


def test_a_table_keeps_all_of_its_columns(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.wav").write_bytes(b"RIFF" + name.encode())
    (tmp_path / "t.csv").write_text(
        'path,speaker,Length s,zip,words,label,age\na.wav,7,1.5,007,"one, two",no,\nb.wav,8,2,123,,yes,31\n'
    )
    found = made(source_of(tmp_path / "t.csv", None), tmp_path / "shards")
    one = {"audio": b"RIFFa", "speaker": 7, "Length_s": 1.5, "zip": "007", "words": "one, two", "label": 0, "age": None}
    two = {"audio": b"RIFFb", "speaker": 8, "Length_s": 2.0, "zip": "123", "words": "", "label": 1, "age": 31}
    assert found == [one, two]
    assert list(ShardedDataset(tmp_path / "shards").contents.classes) == ["no", "yes"]


def test_cells_of_a_table_may_be_separated_by_tabs(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFFa")
    (tmp_path / "t.TSV").write_text('path\tspeaker\twords\na.wav\t7\t"one,\ttwo"\n')
    (one,) = made(source_of(tmp_path / "t.TSV", None), tmp_path / "shards")
    assert one == {"audio": b"RIFFa", "speaker": 7, "words": "one,\ttwo"}
    (tmp_path / "t.TSV").write_text("path,speaker\na.wav,7\n")
    with pytest.raises(UsageError, match="has the columns path,speaker; one must be called path"):
        source_of(tmp_path / "t.TSV", None)


def test_a_table_needs_no_labels(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg(16, 16))
    (tmp_path / "t.csv").write_text("file_name,caption\na.jpg,a caption\n")
    (one,) = made(source_of(tmp_path / "t.csv", None), tmp_path / "shards")
    assert (one["image"].shape, one["caption"], len(one)) == ((16, 16, 3), "a caption", 2)


def test_a_row_with_more_cells_than_heads_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("path,caption\na.jpg,one, two\n")
    with pytest.raises(UsageError, match="line 2: it has more cells than the first line"):
        source_of(tmp_path / "t.csv", None)


@pytest.mark.parametrize(("suffix", "column"), [("jpg", "image"), ("flac", "audio"), ("mp4", "video")])
def test_a_flat_folder_has_no_labels(tmp_path, suffix, column):
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.{suffix}").write_bytes(jpeg(16, 16, number))
    (tmp_path / "in" / "notes.txt").write_text("left out")
    source = source_of(tmp_path / "in", None)
    found = made(source, tmp_path / "shards")
    assert [list(one) for one in found] == [[column]] * 3
    assert suffix == "jpg" or found[2][column] == jpeg(16, 16, 2)
    assert source.notes == [f"1 files of {tmp_path / 'in'} are not converted: 1 .txt"]


def test_files_that_are_left_out_are_told(tmp_path, capfd):
    folder = folder_of_pictures(tmp_path / "in", 6)
    (folder / "readme.md").write_text("x")
    (folder / "stray.jpg").write_bytes(jpeg(8, 8))
    (folder / "class0" / "old.gif").write_bytes(b"GIF89a")
    (folder / "class0" / ".DS_Store").write_bytes(b"x")
    with pytest.raises(SystemExit, match="^0$"):
        main(["data", "convert", str(folder), str(tmp_path / "out"), "--processes", "1"])
    said = capfd.readouterr().err
    assert f"3 files of {folder} are not converted: " in said
    assert all(f"1 {kind}" in said for kind in (".md", ".gif", ".jpg beside the folders of classes"))


def test_one_list_of_classes_for_train_and_validation(tmp_path):
    train = folder_of_pictures(tmp_path / "train", 12, classes=4)
    few = tmp_path / "few"
    (few / "class3").mkdir(parents=True)
    (few / "class3" / "a.jpg").write_bytes(jpeg(16, 16))
    convert(image_folder(train), tmp_path / "shards", Options(), 1, lambda done, whole: None)
    classes = classes_from(tmp_path / "shards")
    (one,) = made(source_of(few, None, classes), tmp_path / "of_folder")
    assert one["label"] == 3
    (few / "t.csv").write_text("path,label\nclass3/a.jpg,class3\n")
    (one,) = made(source_of(few / "t.csv", None, classes), tmp_path / "of_table")
    assert one["label"] == 3
    assert list(ShardedDataset(tmp_path / "of_table").contents.classes) == [f"class{n}" for n in range(4)]
    (few / "class9").mkdir()
    (few / "class9" / "a.jpg").write_bytes(jpeg(16, 16))
    with pytest.raises(UsageError, match="has classes that --classes-from does not have: class9"):
        source_of(few, None, classes)


def test_classes_of_a_text_file(tmp_path):
    (tmp_path / "classes.txt").write_text("zebra\nant\n")
    assert classes_from(tmp_path / "classes.txt") == ["zebra", "ant"]
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfzebra\r\nant\r\n")  # as editors on Windows save it
    assert classes_from(tmp_path / "classes.txt") == ["zebra", "ant"]
    with pytest.raises(UsageError, match="has 'ant' more than once"):
        source_of(tmp_path, "images", ["ant", "bee", "ant"])
    (tmp_path / "classes.txt").write_text("ant\nant\n")
    with pytest.raises(UsageError, match="the same class twice"):
        classes_from(tmp_path / "classes.txt")
