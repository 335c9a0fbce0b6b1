"""All ranks read the same samples, although the file system may list files in another order on each rank."""

from __future__ import annotations

import pytest
from tests.train.unmodified.listed import write
from tests.train.unmodified.test_unmodified import HERE, paceline

from paceline.train.unmodified import listings

ORDERED = {
    "added_to": "64 True",
    "by_scandir": "64 True",
    "by_glob": "64 True 64 True",
    "in_a_temporary_folder": "64 True",
    "classes_of_folders": "8 True",
}
REFUSED = ("other_order_on_another_rank", "others_on_another_rank")


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listed")
    (folder / "data").mkdir()
    write(folder / "data", range(32))
    return paceline(folder, "-q", "--no-profile", "--layout", "dp=2", HERE / "listed.py", *ORDERED, *REFUSED)


def test_files_in_no_order_are_read_in_the_order_of_rank_0(listed):
    assert listed.stdout.splitlines()[: len(ORDERED)] == [f"{name} {found}" for name, found in ORDERED.items()]


def test_datasets_that_differ_between_ranks_are_refused(listed):
    assert listed.stdout.splitlines()[len(ORDERED) :] == [f"{name} refused 2" for name in REFUSED]
    assert listed.stderr.count("Files.files is not the same on rank 1") == 2


def test_the_nth_listing_of_the_same_names_takes_the_nth_order(tmp_path):
    noting, following = listings._Noting(str(tmp_path / "l")), listings._Following(str(tmp_path / "l"))
    for names in (["c", "a", "b"], ["y", "x"], ["b", "c", "a"]):
        noting.order(names)
    assert following.order(["a", "b", "c"]) == ["c", "a", "b"]
    assert following.order(["a", "b", "c"]) == ["b", "c", "a"]
    assert following.order(["x", "y"]) == ["y", "x"]


def test_names_that_rank_0_does_not_list_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(listings, "_WAIT_S", 0.01)
    assert listings._Following(str(tmp_path / "l")).order(["b", "a"]) == ["b", "a"]
