"""Long runs are read in stretches: how many rows, which, and what is still exact."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain.build import RunFolder, plain, steps

from paceline.explain.analysis.breakdown import break_down, timeline
from paceline.explain.analysis.loss import loss_curve
from paceline.record import stretches as module
from paceline.record.read import read_run
from paceline.record.stretches import rows_of_each, stretches


@given(st.integers(0, 10**7), st.integers(512, 300_000))
@settings(deadline=None)
def test_stretches_cover_both_ends_in_order_and_stay_within_the_limit(count, most):
    parts = stretches(count, most)
    assert sum(end - start for start, end in parts) <= max(most, 0) or count <= most
    assert parts[0][0] == 0
    assert parts[-1][1] == count
    starts = [start for start, _ in parts]
    assert starts == sorted(starts)
    assert all(before[1] <= after[0] for before, after in zip(parts, parts[1:], strict=False))


def test_a_thousand_ranks_share_the_rows_of_a_run():
    assert rows_of_each(1) == module.MOST_ROWS
    assert 1000 * rows_of_each(1000) < 1_100_000


@pytest.fixture
def long_run(tmp_path, monkeypatch):
    """20,000 steps, of which 4,096 may be read; the loss is infinite once, in the middle."""
    monkeypatch.setattr(module, "MOST_ROWS", 4096)
    rows = steps(
        20_000,
        lambda n: {"loss": float("inf") if n == 9_999 else 1.0 + 1 / (n + 1), "data_wait": 10.0 if n % 4 == 0 else 0.0},
        forward=3,
        backward=6,
        optimizer=1,
    )
    folder = RunFolder(tmp_path).rank(rows, tail={"gap": 5}).launch()
    return folder.read(), read_run(folder.folder, in_stretches=True)


def test_counts_are_exact_and_statistics_are_those_of_all_steps(long_run):
    whole, part = (run.ranks[0] for run in long_run)
    assert len(part.steps) <= 4096 < len(whole.steps)
    assert (part.count, len(part.tail)) == (whole.count, len(whole.tail)) == (20_000, 1)
    exact, sampled = break_down(whole, ()), break_down(part, ())
    assert sampled.steps == exact.steps
    assert sampled.micro_steps == pytest.approx(exact.micro_steps, rel=0.01)
    assert sampled.seconds["data_wait"] == pytest.approx(exact.seconds["data_wait"], rel=0.02)
    assert sampled.shares["backward"] == pytest.approx(exact.shares["backward"], rel=0.02)
    assert sampled.step_s.value == pytest.approx(exact.step_s.value)


def test_no_loss_is_left_out(long_run):
    whole, part = (loss_curve(run.ranks[0], None) for run in long_run)
    assert part.first_bad_step == whole.first_bad_step == 9_999
    assert (part.first, part.last) == (whole.first, whole.last)
    assert part.seconds[-1] == pytest.approx(whole.seconds[-1])


def test_the_timeline_reaches_from_the_first_step_to_the_last(long_run):
    whole, part = (timeline(run.ranks[0]) for run in long_run)
    assert sum(point.steps for point in part) == sum(point.steps for point in whole) == 20_000
    assert part[-1].seconds == pytest.approx(whole[-1].seconds, rel=0.01)


def test_a_short_run_is_read_whole(tmp_path):
    folder = RunFolder(tmp_path).rank(plain(100)).launch()
    rank = read_run(folder.folder, in_stretches=True).ranks[0]
    assert rank.recorded is None
    assert rank.steps.tobytes() == folder.read().ranks[0].steps.tobytes()
