"""A summary of thousands of loaders stays small, and nothing is lost of loaders that look the same."""

from __future__ import annotations

import json

from tests.explain.build import loader, meter

from paceline.inprocess.recorder.loaders.summary import bounded


def test_a_loader_for_each_client():
    told = bounded(loader(num_workers=0, meter=meter(10, 0.01, 0.005), train_fetches=10) for _ in range(5000))
    assert len(json.dumps(told)) < 100_000
    assert sum(one["train_fetches"] for one in told) == 50_000
    assert sum(one["meter"]["batches"] for one in told) == 50_000
    assert sum(sum(one["meter"]["histogram"]) for one in told) == 50_000
    assert told[0]["together"] == 5000 - len(told) + 1


def test_few_loaders_are_told_one_by_one():
    entries = [loader(dataset=f"Set{number}") for number in range(5)]
    assert bounded(entries) == entries


def test_a_kind_that_comes_late_is_told_too():
    told = bounded([*[loader() for _ in range(1000)], loader(dataset="Validation", eval_fetches=7)])
    assert [one["eval_fetches"] for one in told if one["dataset"] == "Validation"] == [7]


def test_thousands_of_kinds_are_bounded():
    assert len(bounded(loader(dataset=f"Client{number}") for number in range(5000))) <= 100
