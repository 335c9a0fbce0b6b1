"""Folders that `save_to_disk` of Hugging Face wrote: what `state.json` lists is converted, and nothing else."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.ipc
import pytest

from paceline.core.errors import UsageError
from paceline.data.sources.found import source_of


def stream(path, values, *, end=True) -> None:
    with path.open("wb") as file:
        schema = pyarrow.schema([("a", pyarrow.int64())])
        writer = pyarrow.ipc.new_stream(file, schema)
        for value in values:
            writer.write_table(pyarrow.table({"a": [value]}, schema))
        if end:
            writer.close()


def saved(folder, parts, *, state=True, **more):
    """Files of one batch a row, as save_to_disk writes them, and results of `map` beside them."""
    folder.mkdir()
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, values in zip(names, parts, strict=True):
        stream(folder / name, values)
    stream(folder / "cache-0123456789abcdef.arrow", [-1, -2])
    (folder / "dataset_info.json").write_text("{}")
    if state:
        noted = {"_data_files": [{"filename": name} for name in names], "_split": None, **more}
        (folder / "state.json").write_text(json.dumps(noted))
    return folder


def rows(source) -> list[int]:
    return [source.sample(number)["a"] for number in range(len(source))]


@pytest.mark.parametrize("state", [True, False])  # without it, it is the cache of datasets
def test_results_of_map_are_no_data(tmp_path, state):
    source = source_of(saved(tmp_path / "in", [[3, 1], [2]], state=state), None)
    assert rows(source) == [3, 1, 2]
    assert source.notes == [f"1 files of {tmp_path / 'in'} are not converted: 1 .arrow"]


@pytest.mark.parametrize("kind", [None, "arrow"])
def test_a_missing_part_is_named(tmp_path, kind):
    folder = saved(tmp_path / "in", [[1], [2], [3]])
    for name in ("data-00000-of-00003.arrow", "data-00002-of-00003.arrow"):
        (folder / name).unlink()
    with pytest.raises(UsageError, match="lacks data-00000-of-00003.arrow, data-00002.*: 2 of 3 files"):
        source_of(folder, kind)


@pytest.mark.parametrize("key", ["_indices_files", "_indices_data_files"])
def test_a_selection_of_rows_is_refused_with_the_way_out(tmp_path, key):
    folder = saved(tmp_path / "in", [[1, 2]], **{key: [{"filename": "indices.arrow"}]})
    with pytest.raises(UsageError, match="flatten_indices"):
        source_of(folder, None)
    assert rows(source_of(saved(tmp_path / "none", [[1, 2]], **{key: []}), None)) == [1, 2]


def test_a_state_that_cannot_be_read_is_refused(tmp_path):
    folder = saved(tmp_path / "in", [[1]])
    (folder / "state.json").write_text('{"_data_files": [')
    with pytest.raises(UsageError, match="state.json cannot be read"):
        source_of(folder, None)


def test_a_stream_without_an_end_is_told(tmp_path):
    folder = saved(tmp_path / "in", [[1, 2], [3]])
    stream(folder / "data-00000-of-00002.arrow", [1], end=False)
    source = source_of(folder, None)
    assert rows(source) == [1, 3]
    assert [note for note in source.notes if "no mark at its end" in note and "data-00000" in note]
