"""The model of how fast batches could be made, and the two loaders that it must tell apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.build import RunFolder, histogram, loader, meter, plain, two_ranks

from paceline.explain.analysis.loader_model import (
    LoaderModel,
    bound_by_cpu,
    is_blocked,
    is_jitter,
    is_transport,
    loader_model_of,
    waiting_rank,
    worker_threads,
)
from paceline.explain.diagnose import diagnose
from paceline.record.layout import FLAG_EPOCH, FLAG_FRESH


def loader_model(**changes) -> LoaderModel:
    """20 ms a step: 10 of compute, and 10 of waiting for batches that take two workers 40 ms each."""
    values = {
        "step_s": 0.020,
        "wait_s": 0.010,
        "restart_s": 0.0,
        "compute_s": 0.010,
        "make_s": 0.040,
        "make_cpu_s": 0.001,
        "hand_over_s": 0.0,
        "other_cpu_s": 0.010,
        "workers": 2,
        "cores": 2.0,
    }
    return LoaderModel(**(values | changes))


SLEEP = loader_model()
BURN = loader_model(step_s=0.025, wait_s=0.015, make_cpu_s=0.040)


def test_a_step_takes_the_longest_of_its_bounds():
    assert [SLEEP.step_with(w) for w in (1, 2, 4, 8)] == pytest.approx([0.040, 0.020, 0.010, 0.010])
    assert [BURN.step_with(w) for w in (1, 2, 4, 8)] == pytest.approx([0.040, 0.025, 0.025, 0.025])
    assert SLEEP.step_with(0) == SLEEP.step_with(1)


def test_the_fewest_workers_near_the_best():
    assert SLEEP.best_workers() == 4
    assert BURN.best_workers() == 2
    assert loader_model(make_s=0.0396).best_workers() == 4
    assert loader_model(make_s=0.0309).best_workers() == 3  # within 3% of the compute
    assert loader_model(make_s=10.0, compute_s=0.001, other_cpu_s=0.001).best_workers() > 32


def test_samples_that_wait_gain_and_samples_that_burn_do_not():
    assert SLEEP.gain_with(4).high == pytest.approx(2.0)
    assert SLEEP.gain_with(4).low > 1.2
    assert (BURN.gain_with(4).low, BURN.gain_with(4).high) == (1.0, 1.0)


def test_new_workers_also_have_to_send_their_batches():
    """Measured: two workers for a step of 2.7 ms, 2.3 ms of them for the batch, made the step 0.8 times as fast."""
    times = {"wait_s": 0.0023, "make_s": 0.0023, "make_cpu_s": 0.0023, "compute_s": 0.0004, "other_cpu_s": 0.0004}
    sending = loader_model(step_s=0.0027, **times, workers=0, to_send=1.0)
    assert sending.gain_with(2).low == 1.0
    assert 1.2 < sending.gain_with(2).high < replace(sending, to_send=0.0).gain_with(2).high
    assert replace(SLEEP, to_send=1.0).gain_with(4).high > 0.95 * SLEEP.gain_with(4).high


def test_what_more_workers_do_not_explain_is_not_promised_of_them():
    """40 ms a step where the model knows of 20: of the rest, more workers may save half, or nothing."""
    found = loader_model(step_s=0.040, wait_s=0.030)
    assert found.unexplained_s == pytest.approx(0.020)
    assert found.gain_with(4).high == pytest.approx(2.0)
    busy = 0.55  # of the cores, with the batches that come twice as fast
    assert found.gain_with(4).low == pytest.approx(0.040 / (0.010 * (1.33 + 0.25 * busy) + 0.020))
    assert loader_model(step_s=0.040, restart_s=0.020).unexplained_s == loader_model(workers=0).unexplained_s == 0.0


def test_shares():
    assert SLEEP.wait_share == 0.5
    assert loader_model(restart_s=0.004).steady_share == pytest.approx(0.3)
    assert loader_model(step_s=0.0).wait_share == loader_model(step_s=0.0).steady_share == 0.0
    assert BURN.cpu_demand == pytest.approx(1.0)
    assert SLEEP.cpu_demand == pytest.approx(0.275)


positive = st.floats(1e-4, 10.0)


@given(positive, positive, positive, positive, st.floats(1, 64))
@settings(deadline=None)
def test_more_workers_never_predict_a_slower_step(compute, make, make_cpu, other, cores):
    found = loader_model(compute_s=compute, make_s=make, make_cpu_s=make_cpu, other_cpu_s=other, cores=cores)
    times = [found.step_with(w) for w in range(1, 65)]
    assert times == sorted(times, reverse=True)
    best = found.best_workers()
    assert found.step_with(best) <= 1.03 * times[-1]
    assert best == 1 or found.step_with(best - 1) > 1.03 * times[-1]
    gain = found.gain_with(best)
    assert 1.0 <= gain.low <= gain.high


# -- from a record -----------------------------------------------------------------------------------


def facts_of(folder: RunFolder, **gauges):
    return folder.gauges(**gauges).facts()


def with_workers(tmp_path, rows, batch_s: float, cpu_s: float, *, own: float = 0.5, **more):
    """A run whose two workers made its batches so; `own` cores were used by the training process."""
    folder = RunFolder(tmp_path).rank(rows, summary={"loaders": [loader()]}, cores=own)
    for number in range(2):
        folder.worker(number, meter(len(rows) // 2, batch_s, cpu_s), **more)
    return facts_of(folder)


def test_what_is_read_from_a_record(tmp_path):
    analysis = with_workers(tmp_path, plain(101, wait=10), 0.040, 0.002, hand_over_cpu_s=0.1)
    found = loader_model_of(analysis, analysis.first)
    assert (found.workers, found.cores) == (2, 2.0)
    assert (found.step_s, found.wait_s, found.compute_s) == pytest.approx((0.020, 0.010, 0.010), rel=1e-3)
    assert (found.make_s, found.make_cpu_s, found.hand_over_s) == pytest.approx((0.040, 0.002, 0.002), rel=1e-3)
    assert found.other_cpu_s == pytest.approx(0.010, rel=0.02)
    assert found.best_workers() == 4


def test_steps_that_take_two_batches_need_twice_the_making(tmp_path):
    analysis = with_workers(tmp_path, plain(101, wait=10, fetches=2), 0.040, 0.002)
    assert loader_model_of(analysis, analysis.first).make_s == pytest.approx(0.080)


def test_making_in_the_training_process_is_not_counted_twice(tmp_path):
    serial = loader(num_workers=0, meter=meter(100, 0.010, 0.009))
    folder = RunFolder(tmp_path).rank(plain(101, wait=10, fetch_cpu=9), summary={"loaders": [serial]}, cores=0.95)
    analysis = facts_of(folder)
    found = loader_model_of(analysis, analysis.first)
    assert found.workers == 0
    assert found.make_cpu_s == pytest.approx(0.009)
    assert found.other_cpu_s == pytest.approx(0.95 * 0.020 - 0.009, rel=0.02)


def test_threads_in_place_of_workers_make_batches_behind(tmp_path):
    threads = loader(num_workers=0, threads=4, meter=meter(100, 0.060, 0.001))
    folder = RunFolder(tmp_path).rank(plain(101, wait=5, fetch_cpu=1), summary={"loaders": [threads]}, cores=0.5)
    analysis = facts_of(folder)
    found = loader_model_of(analysis, analysis.first)
    assert found.workers == 4
    assert found.make_s == pytest.approx(0.060)
    assert found.other_cpu_s == pytest.approx(0.5 * 0.015 - 0.001, rel=0.03)  # what threads use is not counted twice
    told = {one.code: one for one in diagnose(analysis.run).findings}
    assert "DATA001" not in told  # training does not make its data itself
    assert "4 threads" in told["DATA003"].summary
    assert [r.id for r in told["DATA003"].remedies] == ["loader.threads", "loader.shards"]


def test_a_reader_by_hand(tmp_path):
    analysis = facts_of(RunFolder(tmp_path).rank(plain(101, gap=10, fetches=0)))
    found = loader_model_of(analysis, analysis.first)
    assert (found.workers, found.make_s) == (0, pytest.approx(0.010))


def test_cores_are_shared_by_the_ranks_of_a_host(tmp_path):
    two_ranks(folder := RunFolder(tmp_path), [plain(60, wait=10), plain(60, wait=20)])
    analysis = facts_of(folder, header={"allowed_cores": 8.0})
    assert [loader_model_of(analysis, r).cores for r in analysis.ranks] == [4.0, 4.0]
    rank, found = waiting_rank(analysis)
    assert (rank.record.rank, round(found.wait_share, 2)) == (1, 0.67)


@pytest.mark.parametrize("wait, waits", [(0.52, False), (0.54, True)])
def test_waiting_is_noticeable_from_five_percent_on(tmp_path, wait, waits):
    analysis = facts_of(RunFolder(tmp_path).rank(plain(101, wait=wait)))
    assert (waiting_rank(analysis) is not None) == waits


# -- restarts ----------------------------------------------------------------------------------------


def epochs(length: int, first_ms: float, other_ms: float, count: int = 120) -> list[dict[str, object]]:
    rows = plain(count, wait=other_ms)
    for number in range(0, count, length):
        rows[number] = {**rows[number], "data_wait": first_ms, "flags": FLAG_FRESH | FLAG_EPOCH}
    return rows


def test_restarts_are_what_first_fetches_take_more(tmp_path):
    analysis = with_workers(tmp_path, epochs(10, 102, 2), 0.004, 0.004)
    found = loader_model_of(analysis, analysis.first)
    first_left_out = 11  # the first epoch's start is warm-up
    assert found.restart_s == pytest.approx(first_left_out * 0.100 / 119, rel=1e-3)
    assert found.steady_share == pytest.approx((found.wait_s - found.restart_s) / found.step_s)


def test_epochs_of_a_single_step_are_restarts_throughout(tmp_path):
    analysis = with_workers(tmp_path, epochs(1, 30, 0), 0.004, 0.004)
    found = loader_model_of(analysis, analysis.first)
    assert found.restart_s == pytest.approx(found.wait_s)


def test_without_workers_nothing_restarts(tmp_path):
    serial = loader(num_workers=0, meter=meter(100, 0.01, 0.01))
    analysis = facts_of(RunFolder(tmp_path).rank(epochs(1, 30, 0), summary={"loaders": [serial]}))
    assert loader_model_of(analysis, analysis.first).restart_s == 0.0


def test_first_fetches_like_the_others_cost_nothing(tmp_path):
    analysis = with_workers(tmp_path, epochs(10, 5, 5), 0.004, 0.004)
    assert loader_model_of(analysis, analysis.first).restart_s == 0.0


# -- kinds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu_s, blocked", [(0.021, False), (0.019, True)])
def test_blocked_from_half_of_the_making_on(tmp_path, cpu_s, blocked):
    analysis = with_workers(tmp_path, plain(100, wait=10), 0.040, cpu_s)
    assert is_blocked(analysis.first) == blocked


@pytest.mark.parametrize("cores, busy", [(2.4, True), (2.6, False)])
def test_bound_by_cpu_from_four_fifths_of_the_cores_on(tmp_path, cores, busy):
    folder = RunFolder(tmp_path).rank(plain(100, wait=10), summary={"loaders": [loader()]}, cores=0.0)
    folder.worker(0, meter(100, 0.040, 0.040))
    analysis = folder.gauges(header={"allowed_cores": cores}).facts()
    assert bound_by_cpu(analysis, analysis.first, loader_model_of(analysis, analysis.first)) == busy


@pytest.mark.parametrize("runnable, starved", [(0.32, False), (0.35, True)])
def test_bound_by_cpu_when_workers_starve(tmp_path, runnable, starved):
    """A neighbour's load does not show in our own demand, but our workers wait for a core all the same."""
    folder = RunFolder(tmp_path).rank(plain(100, wait=10), summary={"loaders": [loader()]}, cores=0.2)
    folder.worker(0, meter(100, 0.020, 0.010), runnable_s=runnable)
    analysis = folder.gauges(header={"allowed_cores": 16.0}).facts()
    assert bound_by_cpu(analysis, analysis.first, loader_model_of(analysis, analysis.first)) == starved


@pytest.mark.parametrize(
    "collate, hand_over, fetch_cpu, transport",
    [
        (0.50, 0.0, None, False),
        (0.60, 0.0, None, True),
        (0.0, 1.1, None, False),
        (0.0, 1.3, None, True),
        (0.3, 0.2, 20, True),
    ],
)
def test_transport_from_a_fifth_more_than_the_samples_on(tmp_path, collate, hand_over, fetch_cpu, transport):
    folder = RunFolder(tmp_path).rank(plain(100, wait=10, fetch_cpu=fetch_cpu), summary={"loaders": [loader()]})
    folder.worker(0, meter(100, 0.020, 0.010, collate_s=2.0 * collate), hand_over_cpu_s=2.0 * hand_over)
    analysis = folder.gauges().facts()
    assert is_transport(analysis.first, loader_model_of(analysis, analysis.first)) == transport


def jittery(tmp_path, slow_every: int, batches: list[float], wait: float = 0.1):
    rows = plain(121, wait=wait)
    for number in range(5, 121, slow_every):
        rows[number] = {**rows[number], "data_wait": 60}
    folder = RunFolder(tmp_path).rank(rows, summary={"loaders": [loader()]})
    folder.worker(0, meter(120, 0.02, 0.01, histogram=histogram(*batches)))
    return folder.gauges().facts().first


def test_jitter_is_few_long_waits_and_few_slow_batches(tmp_path):
    outsized = [0.01] * 110 + [0.5] * 10
    assert is_jitter(jittery(tmp_path / "a", 12, outsized))
    assert is_jitter(jittery(tmp_path / "d", 12, outsized, wait=4.0))  # a machine on which each step waits a little
    assert not is_jitter(jittery(tmp_path / "b", 3, outsized))  # a third of the steps waits: that is steady
    assert not is_jitter(jittery(tmp_path / "c", 12, [0.05] * 120))  # all batches are slow: the queue runs dry


def test_steady_waiting_is_no_jitter(tmp_path):
    analysis = with_workers(tmp_path, plain(120, wait=10), 0.04, 0.01, histogram=histogram(*[0.01] * 50, *[1.0] * 20))
    assert not is_jitter(analysis.first)
    assert np.isfinite(analysis.first.phases["data_wait"]).all()


def test_the_least_gain_leaves_other_programs_their_cores():
    """A program that uses 0.4 of two cores, beside others that use the rest, gains nothing for sure from workers."""
    alone = loader_model(step_s=0.020, wait_s=0.012, compute_s=0.008, workers=0, make_s=0.012, make_cpu_s=0.002)
    beside = replace(alone, free_cores=0.4)
    assert alone.gain_with(4).low > 1.2
    assert beside.gain_with(4).low < alone.gain_with(4).low
    assert beside.gain_with(4).high == alone.gain_with(4).high


@pytest.mark.parametrize(("threads", "expected"), [(4, 0), (5, 0), (6, 0), (19, 30)])
def test_helper_threads_of_workers_are_no_compute_threads(tmp_path, threads, expected):
    folder = RunFolder(tmp_path).rank(plain(60), summary={"loaders": [loader()]})
    for number in range(2):
        folder.worker(number, meter(100, 0.060, 0.001), threads=threads)
    analysis = folder.gauges().facts()
    assert worker_threads(analysis, analysis.first) == expected
