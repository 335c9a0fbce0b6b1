"""Workers' counters, and what is said of the loader that they serve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.build import RunFolder, histogram, loader, meter, plain

from paceline.explain.analysis.loader import batch_interval, loader_breakdown, slow_share, training_loaders, worker_row
from paceline.inprocess.recorder.loaders.fetch import Meter
from paceline.record.layout import BATCH_BOUNDS_S


def broken_down(folder: RunFolder, **more):
    run = folder.launch().read()
    return loader_breakdown(run, run.ranks[0], **more)


def epoch(number: int, seed: int) -> dict[str, object]:
    return {"kind": "epoch", "loader": number, "base_seed": seed}


# -- which loader ------------------------------------------------------------------------------------


def loaders_of(tmp_path, *loaders) -> list[int]:
    run = RunFolder(tmp_path).rank(plain(5), summary={"loaders": list(loaders)}).launch().read()
    return training_loaders(run.ranks[0])


def test_the_loader_that_training_waited_for_most(tmp_path):
    small = loader(dataset="Labels", train_wait_s=0.2)
    assert loaders_of(tmp_path, small, loader(train_wait_s=1.5), loader(dataset="Words", train_wait_s=1.0)) == [1]


def test_one_built_anew_every_epoch_counts_as_one(tmp_path):
    other = loader(dataset="Labels", train_wait_s=1.1)
    assert loaders_of(tmp_path, loader(train_wait_s=1), other, loader(train_wait_s=1), loader(train_wait_s=1)) == [
        0,
        2,
        3,
    ]


def test_an_evaluation_loader_that_looks_the_same_is_not_among_them(tmp_path):
    """The same class, data set class, batch size and workers: only its use tells it apart."""
    evaluation = loader(train_fetches=0, train_wait_s=0.0, eval_fetches=500, eval_wait_s=90.0)
    assert loaders_of(tmp_path, evaluation, loader()) == [1]


def test_a_loader_that_was_never_asked(tmp_path):
    unused = {k: v for k, v in loader().items() if not k.startswith(("train", "eval"))}
    assert loaders_of(tmp_path, unused) == []
    assert loaders_of(tmp_path / "none") == []


def test_a_loader_without_any_wait_still_is_one(tmp_path):
    assert loaders_of(tmp_path, loader(train_wait_s=0.0)) == [0]


# -- workers -----------------------------------------------------------------------------------------


def test_workers_are_added_up(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(100), summary={"loaders": [loader()]})
    one = meter(40, 0.010, 0.004, collate_s=0.08)
    folder.worker(0, one, runnable_s=0.06, hand_over_cpu_s=0.02, hot=[{"function": "decode (data.py:3)", "count": 30}])
    folder.worker(1, one, runnable_s=0.06, read_bytes=5e6, hot=[{"function": "decode (data.py:3)", "count": 10}])
    found = broken_down(folder)
    assert (found.workers, found.batches, found.samples) == (2, 80, 640)
    assert found.produce_s == pytest.approx(0.8)
    assert (found.on_cpu, found.blocked, found.runnable) == pytest.approx((0.4, 0.45, 0.15))
    assert (found.collate, found.hand_over) == pytest.approx((0.2, 0.025))
    assert found.batch_s.value == pytest.approx(0.010)
    assert found.cpu_per_batch_s == pytest.approx(0.004)
    assert found.read_bytes_per_s == pytest.approx(5e6 / 1.0, rel=0.01)
    assert [(h.function, h.count, h.share) for h in found.hot] == [("decode (data.py:3)", 40, 1.0)]
    assert found.loader == "DataLoader over Photos (batch_size 8, 2 workers)"
    assert [row.worker_id for row in found.per_worker] == [0, 1]


@given(*[st.floats(0, 10)] * 4)
@settings(max_examples=100, deadline=None)
def test_a_workers_making_is_split_without_rest(tmp_path_factory, produce, cpu, runnable, more):
    folder = RunFolder(tmp_path_factory.mktemp("run")).rank(plain(2))
    folder.worker(0, meter(1, produce, cpu), runnable_s=runnable, life_s=produce + more)
    row = worker_row(folder.launch().read().workers[0])
    assert row.on_cpu_s + row.blocked_s + row.runnable_s == pytest.approx(produce)
    assert min(row.on_cpu_s, row.blocked_s, row.runnable_s, row.idle_s) >= 0
    assert row.idle_s == pytest.approx(more, abs=1e-9)


def test_workers_of_the_evaluation_loader_are_not_counted(tmp_path):
    loaders = [loader(), loader(dataset="Held", train_fetches=0, train_wait_s=0.0, eval_fetches=9)]
    folder = RunFolder(tmp_path).rank(plain(5), summary={"loaders": loaders}, notes=[epoch(0, 11), epoch(1, 77)])
    folder.worker(0, meter(40, 0.010, 0.010), base_seed=11)
    folder.worker(1, meter(900, 0.500, 0.001), base_seed=77)
    assert broken_down(folder).batches == 40


def test_workers_of_other_processes_are_not_counted(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(5), summary={"loaders": [loader()]})
    folder.worker(0, meter(40, 0.010, 0.010)).worker(1, meter(900, 0.5, 0.001), parent=4242)
    assert broken_down(folder).batches == 40


def test_workers_of_every_epoch_count(tmp_path):
    notes = [epoch(0, seed) for seed in (11, 12, 13)]
    folder = RunFolder(tmp_path).rank(plain(5), summary={"loaders": [loader()]}, notes=notes)
    for number, seed in enumerate((11, 12, 13)):
        folder.worker(number, meter(10, 0.01, 0.01), base_seed=seed)
    assert broken_down(folder).batches == 30


def test_seeds_that_tell_nothing(tmp_path):
    """A loader class whose iterator keeps no seed: all workers of this process are taken."""
    folder = RunFolder(tmp_path).rank(plain(5), summary={"loaders": [loader()]}, notes=[epoch(0, 0)])
    assert broken_down(folder.worker(0, meter(7, 0.01, 0.01), base_seed=99)).batches == 7


def test_workers_that_wrote_nothing(tmp_path):
    assert broken_down(RunFolder(tmp_path).rank(plain(5), summary={"loaders": [loader()]})) is None


# -- without workers ---------------------------------------------------------------------------------


def test_in_the_training_process(tmp_path):
    hot = [
        {"slot": "data_wait", "side": "", "function": "decode (data.py:3)", "count": 30, "leaf": None},
        {
            "slot": "data_wait",
            "side": "",
            "function": "loop (train.py:5)",
            "count": 50,
            "leaf": "wait (threading.py:327)",
        },
        {"slot": "gap", "side": "host", "function": "log (train.py:9)", "count": 90, "leaf": None},
    ]
    serial = loader(num_workers=0, meter=meter(60, 0.010, 0.006))
    folder = RunFolder(tmp_path).rank(plain(60), summary={"loaders": [serial], "hot": hot}, contention=0.5)
    found = broken_down(folder)
    assert (found.workers, found.batches, found.idle_s, found.hand_over) == (0, 60, 0.0, 0.0)
    assert (found.on_cpu, found.runnable, found.blocked) == pytest.approx((0.6, 0.3, 0.1))
    assert [h.function for h in found.hot] == ["decode (data.py:3)"]
    assert found.loader == "DataLoader over Photos (batch_size 8, no workers)"


def test_few_samples_name_no_function_of_a_loader_in_the_training_process(tmp_path):
    hot = [{"slot": "data_wait", "side": "", "function": "decode (data.py:3)", "count": 3, "leaf": None}]
    serial = loader(num_workers=0, meter=meter(60, 0.010, 0.006))
    assert broken_down(RunFolder(tmp_path).rank(plain(60), summary={"loaders": [serial], "hot": hot})).hot == []


def test_in_the_training_process_of_an_evaluation_that_looks_the_same(tmp_path):
    train = loader(num_workers=0, meter=meter(60, 0.010, 0.006))
    held = loader(num_workers=0, meter=meter(500, 0.9, 0.9), train_fetches=0, train_wait_s=0.0, eval_fetches=500)
    folder = RunFolder(tmp_path).rank(plain(60), summary={"loaders": [train, held]})
    assert broken_down(folder).batches == 60


def test_nothing_was_counted(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(60), summary={"loaders": [loader(num_workers=0)]})
    assert broken_down(folder) is None


# -- histograms --------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 100.0), min_size=1, max_size=200))
@settings(deadline=None)
def test_the_interval_holds_its_quantiles_to_a_factor_of_two(times):
    times = [round(t, 9) for t in times]
    found = batch_interval([histogram(*times)], float(np.mean(times)))
    low, high = np.quantile(times, 0.05, method="lower"), np.quantile(times, 0.95, method="higher")
    assert found.low <= low or found.low <= 1e-4
    assert found.high >= min(np.quantile(times, 0.95, method="inverted_cdf"), BATCH_BOUNDS_S[-1] * 2) * (1 - 1e-9)
    assert found.high <= max(4 * high, 1e-4, float(np.mean(times)))
    assert found.count == len(times)
    assert found.low <= found.value <= found.high


@given(st.lists(st.integers(1, 200_000_000_000), max_size=60))
@settings(deadline=None)
def test_the_tests_histogram_is_the_probes(times_ns):
    counted = Meter()
    for time_ns in times_ns:
        counted.noted.append((time_ns, (0, 0), 1))
    assert counted.as_json()["histogram"] == histogram(*[t / 1e9 for t in times_ns])


def test_histograms_of_workers_are_merged():
    found = batch_interval([histogram(0.001), histogram(0.1, 0.1), []], 0.05)
    assert found.count == 3
    assert found.low <= 0.001
    assert found.high >= 0.1


def test_no_batches_no_spread():
    assert (batch_interval([], 0.5).low, batch_interval([[]], 0.5).high) == (0.5, 0.5)
    assert slow_share([]) == 0.0


def test_slow_share():
    assert slow_share([histogram(*[0.01] * 50)]) == 0.0
    assert slow_share([histogram(*[0.01] * 50, *[0.02] * 50)]) == 0.0
    outsized = slow_share([histogram(*[0.01] * 90, *[1.0] * 10)])
    assert outsized == pytest.approx(0.92, abs=0.04)
    assert slow_share([histogram(*[0.01] * 99, 0.05)]) < 0.1
