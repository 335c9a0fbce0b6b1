"""Text in records of JSON and CSV: each text as it is, or an error with the line; never the file as it stands."""

from __future__ import annotations

import csv
import gzip
import io
import json

import pytest
from click.testing import CliRunner

from paceline.cli.data.convert import command
from paceline.core.errors import UsageError
from paceline.data.sources.text import TextOptions, documents, text_files

TEXTS = ["plain", "", 'with "quotes", commas', "two\nlines", "tab\there", "é 字 \U0001f600", "x" * 200_000]
RECORDS = [{"id": number, "body": text} for number, text in enumerate(TEXTS)]


def lines(records) -> str:
    return "".join(json.dumps(one) + "\n" for one in records)


def cells(records, delimiter=",") -> str:
    made = io.StringIO(newline="")
    writer = csv.DictWriter(made, ["id", "body"], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(records)
    return made.getvalue()


WRITTEN = {
    "a.jsonl": lines(RECORDS),
    "lines.json": lines(RECORDS),
    "array.json": json.dumps(RECORDS),
    "indented.json": json.dumps(RECORDS, indent=2),
    "a.csv": cells(RECORDS),
    "a.tsv": cells(RECORDS, "\t"),
}


def texts_of(path, **how) -> list[str]:
    return [text.text for some in documents(path, options=TextOptions(text_field="body", **how)) for text in some]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_every_text_of_records_comes_over(tmp_path, name, packed, mark):
    path = tmp_path / (name + ".gz" * packed)
    (gzip.open if packed else open)(path, "wb").write((mark + WRITTEN[name]).encode())
    assert texts_of(path) == TEXTS


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.json", json.dumps({"rows": RECORDS}, indent=1), "neither JSON lines nor one array of objects"),
        ("a.json", '[{"body": "a"}', "neither JSON lines nor one array of objects"),
        ("a.json", '{"words": "a"}\n', 'line 1: it is not an object with a field "body"'),
        ("a.json", '[{"body": "a"}, {"body": 2}]', r'\[1\]: the field "body" is int'),
        ("a.csv", "text,id\na,1\n", "has no column body; name one of text, id with --text-field"),
        ("a.csv", "body,body\na,b\n", "two columns called body"),
        ("a.csv", "id,body\n1,a\n2\n", "line 3: it has fewer cells"),
        ("a.csv", "id,body\n1,a,b\n", "line 2: it has more cells"),
        ("a.csv", 'id,body\n1,"a\n2,b\n', "cannot be read as CSV"),
        ("a.csv", "id,body\n1,caf\udce9\n", "is not UTF-8 text"),
    ],
)
def test_records_without_text_are_an_error(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=said):
        texts_of(tmp_path / name)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.jsonl", '{"body": "a"}\n{"id": 1}\n{"body": 2}\n{"body": "b"}\n'),
        ("a.json", '[{"body": "a"}, {"id": 1}, {"body": 2}, {"body": "b"}]'),
        ("a.csv", "id,body\n1,a\n2\n3,x,y\n4,b\n"),
    ],
)
def test_records_without_text_are_skipped_one_by_one(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    skipped = []
    assert texts_of(tmp_path / name, bad=skipped.append) == ["a", "b"]
    assert len(skipped) == 2 and all(name in one for one in skipped)


def test_json_and_csv_of_a_folder_are_text_if_there_is_nothing_else(tmp_path):
    for name in ("a.csv", "a.json", "b.json.gz"):
        (tmp_path / name).write_text("")
    assert [path.name for path in text_files(tmp_path)] == ["a.json", "b.json.gz"]
    (tmp_path / "c.txt").write_text("")
    assert [path.name for path in text_files(tmp_path)] == ["c.txt"]


def run(*arguments):
    return CliRunner().invoke(command, [*map(str, arguments), "--tokenizer", "bytes"], standalone_mode=False)


def test_fields_that_are_not_converted_are_told_however_late_they_come(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 2000 + '{"text": "b", "late": 1}\n')
    done = run(tmp_path / "a.jsonl", tmp_path / "out")
    assert "only text is converted; other fields are not: late" in done.stderr


def test_a_text_field_of_plain_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    done = run(tmp_path / "a.txt", tmp_path / "out", "--text-field", "body")
    assert isinstance(done.exception, UsageError) and "--text-field has no effect" in str(done.exception)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_link_to_nothing_is_an_error(tmp_path, name):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("text")
    (tmp_path / "in" / name).symlink_to("gone")
    done = run(tmp_path / "in", tmp_path / "out")
    assert isinstance(done.exception, UsageError) and f"{name} cannot be read" in str(done.exception)
