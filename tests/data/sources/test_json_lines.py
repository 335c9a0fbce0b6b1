"""JSON lines whose fields are columns: every value comes over, and a line that is no object is a damaged sample."""

from __future__ import annotations

import gzip
import json

import pytest
from click.testing import CliRunner
from tests.data.making import folder_of_pictures

from paceline.cli.data.convert import command
from paceline.core.errors import UsageError
from paceline.data import FileDataset
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources import BadSample
from paceline.data.sources.found import kind_at, source_of
from paceline.data.sources.json_lines import json_lines
from paceline.data.sources.text import TextOptions, documents

LINES = [
    {"id": 2**53 + 1, "text": "ü\0\n", "score": 1, "tags": ["a", 1], "flag": True, "mixed": 1},
    {"id": -1, "text": "", "score": 0.5, "tags": {"b": None}, "flag": False, "mixed": "two", "late": None},
    {"id": 0, "text": None, "score": None, "tags": [], "flag": None, "mixed": [3.5], "late": 2.25},
]


def write(path, lines=LINES, before=b""):
    path.write_bytes(before + b"\r\n \n".join(json.dumps(line).encode() for line in lines))
    return path


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\n"])
def test_every_value_comes_over(tmp_path, before):
    path = write(tmp_path / "a.jsonl", before=before)
    done = CliRunner().invoke(command, [str(path), str(tmp_path / "out"), "--format", "jsonl", "--no-shuffle"])
    assert done.exit_code == 0, done.output
    found = ShardedDataset(tmp_path / "out")
    kinds = {column.name: column.kind for column in found.contents.columns}
    assert kinds == {
        "id": "int", "text": "text", "score": "float", "tags": "json", "flag": "int", "mixed": "json", "late": "float"
    }  # fmt: skip
    assert [found[number] for number in range(3)] == [{"late": None, **line} for line in LINES]


def test_text_without_a_tokenizer_names_both_ways(tmp_path):
    done = CliRunner().invoke(command, [str(write(tmp_path / "a.jsonl")), str(tmp_path / "out")])
    assert isinstance(done.exception, UsageError) or done.exit_code == 2
    assert "--tokenizer" in str(done.exception) + done.output and "jsonl" in str(done.exception) + done.output


@pytest.mark.parametrize("line", ["[1]", "{", '"text"', '{"id": 1.5}', '{"id": 99999999999999999999}'])
def test_a_line_that_is_no_object_of_these_columns_is_a_damaged_sample(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": 1}\n' + line + '\n{"id": 3}\n')
    dest = tmp_path / "out"
    done = CliRunner().invoke(
        command, [str(path), str(dest), "--format", "jsonl", "--on-error", "skip", "--no-shuffle"]
    )
    found = ShardedDataset(dest)
    is_float = found.contents.columns[0].kind == "float"  # 1.5 beside whole numbers
    assert [found[number]["id"] for number in range(len(found))] == ([1.0, 1.5, 3.0] if is_float else [1, 3])
    assert is_float == ("1.5" in line) and (is_float or "a.jsonl, line 2" in done.output)


def test_lines_beside_images_describe_these_and_a_folder_of_lines_is_read(tmp_path):
    photos = folder_of_pictures(tmp_path / "photos", 6)
    write(photos / "metadata.jsonl")
    assert kind_at(photos, None) == "images"
    (tmp_path / "lines").mkdir()
    for number in range(2):
        write(tmp_path / "lines" / f"{number}.jsonl")
    source = source_of(tmp_path / "lines", None)
    assert [source.name(number) for number in (0, 5)] == ["0.jsonl, line 1", "1.jsonl, line 5"]


def test_files_without_objects_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("[1]\n\n")
    with pytest.raises(UsageError, match="no objects"):
        source_of(tmp_path / "a.jsonl", None)


def test_a_file_that_shrinks_gives_damaged_samples(tmp_path):
    path = write(tmp_path / "a.jsonl")
    source = source_of(path, None)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadSample, match="line 5"):
        source.sample(2)


def test_half_of_a_surrogate_pair_is_named(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b\\ud800"}\n{"text": "\\ud83d\\ude00"}\n{"text": ')
    found = FileDataset(path)
    assert [found[number]["text"] for number in (0, 2)] == ["a", "\U0001f600"]
    with pytest.raises(BadSample, match=r"line 2: it has '\\ud800', half of a surrogate pair"):
        found[1]
    with pytest.raises(BadSample, match="line 4: .*truncated"):
        found[3]
    reasons: list[str] = []
    texts = [one.text for some in documents(path, options=TextOptions(bad=reasons.append)) for one in some]
    assert texts == ["a", "\U0001f600"]
    assert "line 2: it is not JSON: it has '\\ud800', half" in reasons[0] and "line 4: it is not JSON" in reasons[1]


@pytest.mark.parametrize(
    "data, said",
    [
        (gzip.compress(b'{"a": 1}\n', mtime=0), "is compressed with gzip"),
        (b'{"a": NaN}\n{"a": 1, "b": NaN}\n', "NaN or Infinity, which JSON does not have"),
        (b"[1]\n", "first line is no JSON object"),
        (b"\n", "each line must be a JSON object with fields"),
    ],
)
def test_the_reason_why_there_are_no_objects_is_true(tmp_path, data, said):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(UsageError, match=said):
        json_lines([tmp_path / "a.jsonl"])
