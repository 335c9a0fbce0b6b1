"""May one worker read a stream? Where it has no memory of its own: the same samples then, in the same order."""

from __future__ import annotations

import io
import random
import textwrap
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.explain.build import RunFolder, loader, meter, plain

from paceline.explain.diagnose import diagnose
from paceline.inprocess.settings.streams import remembered
from paceline.tune.candidates import DiagnosisContext
from paceline.tune.remedies import candidates

PROGRAM = """
import random
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __init__(self):
        self.epoch, self.place, self.numbers, self.names = 0, 0, random.Random(0), ["a", "b"]
        self.source = {source}

    def __iter__(self):
        {body}

if __name__ == "__main__":
    torch.manual_seed(0)
    stream = Stream()
    loader = DataLoader(stream, batch_size=4)
    for epoch in range(3):
        stream.epoch = epoch
        print([x for batch in loader for x in batch.tolist()], torch.rand(1).item())
"""
ONE_WORKER = {"loader": {"num_workers": 1}}


def program(body: str, source: str = "None") -> str:
    return PROGRAM.format(body=textwrap.indent(textwrap.dedent(body), " " * 8).strip(), source=source)


def test_one_worker_reads_a_stream_in_its_order_and_knows_the_epoch(ran):
    source = program("yield from range(self.epoch, self.epoch + 12)")
    changed = ran(source, ONE_WORKER)
    assert changed.out == ran(source).out
    assert changed.held == {"loader.num_workers": "1 workers instead of 0"}
    assert not changed.refused


@pytest.mark.parametrize(
    "body, source",
    [
        ("for _ in range(12):\n    self.place += 1\n    yield self.place", "None"),
        ("for _ in range(12):\n    yield self.numbers.random()", "None"),
        ("for _ in range(12):\n    yield next(self.source)", "iter(range(100))"),
        ("self.names.append('c')\nreturn iter(range(len(self.names)))", "None"),
    ],
)
def test_a_stream_that_remembers_is_not_left_to_a_worker(ran, body, source):
    changed = ran(program(body, source), ONE_WORKER)
    assert changed.refused == {
        "loader.num_workers": (
            "Stream keeps its read position between epochs, but the copy in a worker would start again from the "
            "beginning in each epoch"
        )
    }


class Holder:
    def __init__(self, part):
        self.part = part


@pytest.mark.parametrize(
    "part, change",
    [
        (SimpleNamespace(count=1), lambda part: setattr(part, "count", 2)),
        ([1], lambda part: part.append(2)),
        ({"a": {"b": 1}}, lambda part: part["a"].update(b=2)),
        (deque([1, 2]), lambda part: part.popleft()),
        (list(range(5000)), lambda part: part.pop()),
        (np.zeros(3), lambda part: part.fill(1)),
        (torch.zeros(3), lambda part: part.fill_(1)),
        (random.Random(0), lambda part: part.random()),
        (np.random.default_rng(0), lambda part: part.random()),
        (np.random.RandomState(0), lambda part: part.rand()),
        (torch.Generator(), lambda part: torch.rand(1, generator=part)),
        ((Holder(Holder({1})),), lambda part: part[0].part.part.add(2)),
    ],
)
def test_what_changes_is_seen(part, change):
    holder = Holder(part)
    before = remembered(holder)
    assert remembered(holder) == before
    change(part)
    assert remembered(holder) != before


@pytest.mark.parametrize("part", [iter([]), (n for n in ()), io.BytesIO(), map(str, []), enumerate([])])
def test_places_in_something_are_seen(part):
    assert remembered(Holder([part])) != remembered(Holder([0]))
    assert any(isinstance(one, type) for one in remembered(Holder([part])))


def test_large_data_is_not_read():
    large = np.zeros(1_000_000)
    assert remembered(Holder(large)) == [id(large)]


def proposed(folder, **settings):
    """What is proposed for a stream that takes three quarters of a step, by the finding and by the remedies."""
    fed = loader(**{"num_workers": 0, "iterable": True, "meter": meter(60, 0.015, 0.015), **settings})
    run = RunFolder(folder).rank(plain(60, wait=15), summary={"loaders": [fed]}, cores=1.0).gauges().facts().run
    remedies = [r for f in diagnose(run).findings for r in f.remedies if r.id == "loader.workers"]
    return remedies, [c for c in candidates(DiagnosisContext(run=run, recipe={})) if c.remedy == "loader.workers"]


def test_a_stream_is_given_one_worker_which_is_exact(tmp_path):
    (advice,), (candidate,) = proposed(tmp_path)
    assert advice.change == "DataLoader(num_workers=1)"
    assert candidate.recipe == ONE_WORKER
    assert advice.safety == candidate.safety == "exact"
    assert advice.gain.high > 1.2


def test_a_stream_that_draws_random_numbers_is_another_in_a_worker(tmp_path):
    (advice,), (candidate,) = proposed(tmp_path, meter=meter(60, 0.015, 0.015, draws_random=True))
    assert advice.safety == candidate.safety == "resampled"
