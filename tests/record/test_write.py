from __future__ import annotations

import json
import os
import re

import pytest

from paceline.core.errors import EnvironmentFault
from paceline.record.write import RUNS, make_run_folder, new_run_id, replace_json


@pytest.mark.parametrize(
    "stem, part",
    [("train", "train"), ("my train/../x y", "my-train-..-x-y"), ("", "run"), ("---", "run"), ("é" * 99, "é" * 32)],
)
def test_a_run_id_sorts_by_time_and_names_the_program(stem, part):
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{re.escape(part)}-[0-9a-f]{{4}}", new_run_id(stem))


def test_no_two_runs_share_an_id():
    assert len({new_run_id("train") for _ in range(50)}) > 45  # four hex digits within one second


def test_the_folders_of_a_run(tmp_path):
    folder = make_run_folder(tmp_path / RUNS, "a-run")
    assert folder == tmp_path / ".paceline" / "runs" / "a-run"
    assert sorted(p.name for p in folder.iterdir()) == ["gauges", "ranks", "workers"]
    assert (tmp_path / ".paceline" / ".gitignore").read_text() == "*\n"


def test_a_folder_chosen_by_the_user_gets_no_gitignore(tmp_path):
    make_run_folder(tmp_path / "elsewhere" / "runs", "a-run")
    assert not list(tmp_path.rglob(".gitignore"))


def test_a_gitignore_that_is_there_stays(tmp_path):
    (tmp_path / ".paceline").mkdir()
    (tmp_path / ".paceline" / ".gitignore").write_text("runs\n")
    make_run_folder(tmp_path / RUNS, "a-run")
    assert (tmp_path / ".paceline" / ".gitignore").read_text() == "runs\n"


def test_a_place_that_cannot_be_written_says_what_to_type(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="--dir DIR"):
        make_run_folder(tmp_path / "file" / "runs", "a-run")


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "end.json"
    replace_json(path, {"exit_code": 3})
    replace_json(path, {"exit_code": None, "words": "é"})
    assert json.loads(path.read_bytes()) == {"exit_code": None, "words": "é"}
    assert os.listdir(tmp_path) == ["end.json"]
