"""Step rows and stack samples, and the shares that must come of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.explain.build import FIRST_NS, OFFSET_NS, RunFolder, S, plain, step, steps, two_ranks
from tests.explain.gpu_run import META

from paceline.explain.analysis.breakdown import (
    at_the_device,
    break_down,
    hot_functions,
    phase_columns,
    runnable_ratio,
    startup_s,
    steady,
    timeline,
)
from paceline.explain.analysis.run_analysis import median_shares
from paceline.record.layout import FLAG_BY_BACKWARD, FLAG_DEVICE_TIMED, FLAG_FRESH, FLAG_PROFILED, PHASES, SLOTS
from paceline.record.read import STEP_TYPE
from paceline.record.run import Rank, column


def rank_of(tmp_path, rows, **more) -> Rank:
    return RunFolder(tmp_path).rank(rows, **more).launch().read().ranks[0]


def samples(slot: str, **sides: int) -> list[dict[str, object]]:
    return [{"slot": slot, "side": side, "count": count} for side, count in sides.items()]


def seconds(rank: Rank) -> dict[str, float]:
    """Milliseconds a step in each phase that has any, over all rows."""
    found = phase_columns(rank, rank.steps)
    return {name: round(1e3 * float(found[name].mean()), 6) for name in PHASES if found[name].any()}


# -- the sum -----------------------------------------------------------------------------------------

milliseconds = st.floats(0, 50).map(lambda x: round(x, 3))
rows = st.lists(
    st.fixed_dictionaries(
        dict.fromkeys(SLOTS, milliseconds),
        optional={
            "flags": st.sampled_from([0, FLAG_FRESH, FLAG_BY_BACKWARD, FLAG_BY_BACKWARD | FLAG_FRESH]),
            "fetches": st.integers(0, 2),
            "forward_blocked": milliseconds,
            "backward_blocked": milliseconds,
        },
    ),
    min_size=1,
    max_size=8,
)
sides = st.fixed_dictionaries({side: st.integers(0, 40) for side in ("input", "loss", "update", "host", "unknown")})
counts = st.fixed_dictionaries(dict.fromkeys(("gap", "mid", "other"), sides))


@given(rows, counts, st.booleans(), st.floats(0, 3))
@settings(max_examples=60, deadline=None)
def test_phases_sum_to_wall_whatever_the_samples_say(tmp_path_factory, rows, counts, distributed, contention):
    counted = [entry for slot, sides in counts.items() for entry in samples(slot, **sides)]
    meta = {"distributed": distributed, "world": 2 if distributed else 1}
    folder = tmp_path_factory.mktemp("run")
    rank = rank_of(folder, rows, summary={"samples": counted}, meta=meta, contention=contention)
    found = phase_columns(rank, rank.steps)
    assert set(found) == set(PHASES)
    assert all((values > -1e-9).all() for values in found.values())
    assert np.sum([found[name] for name in PHASES], axis=0) == pytest.approx(column(rank.steps, "wall_s"), abs=1e-6)


# -- gap, mid and other ------------------------------------------------------------------------------


def test_without_samples_the_gap_of_a_program_with_a_loader_is_its_own(tmp_path):
    assert seconds(rank_of(tmp_path, plain(20, wait=2, gap=4))) == {
        "data_wait": 2,
        "forward": 3,
        "backward": 6,
        "optimizer": 1,
        "other": 4,
    }


def test_without_samples_or_a_loader_the_gap_makes_the_input(tmp_path):
    assert seconds(rank_of(tmp_path, plain(20, gap=4, fetches=0)))["data_wait"] == 4


def test_without_samples_the_gap_before_a_fixed_batch_makes_nothing(tmp_path):
    assert seconds(rank_of(tmp_path, plain(20, gap=4, fetches=0, flags=0)))["other"] == 4


def test_samples_split_the_gap(tmp_path):
    counted = samples("gap", input=30, host=10, unknown=60)
    found = seconds(rank_of(tmp_path, plain(20, gap=4, fetches=0), summary={"samples": counted}))
    assert (found["data_wait"], found["other"]) == (3, 1)


def test_samples_count_with_a_loader_too(tmp_path):
    """A reader in part written by hand: the loader gives names, the loop reads the files."""
    found = seconds(rank_of(tmp_path, plain(20, wait=1, gap=4), summary={"samples": samples("gap", input=20)}))
    assert found["data_wait"] == 5


def test_a_handful_of_samples_counts_beside_the_default(tmp_path):
    """Seven samples, and a default that weighs as much as two: a batch from a loader needs no input made before."""
    found = seconds(rank_of(tmp_path, plain(20, gap=4), summary={"samples": samples("gap", input=7, unknown=90)}))
    assert found["other"] == pytest.approx(4 * 2 / 9)
    none = seconds(rank_of(tmp_path / "none", plain(20, gap=4), summary={"samples": samples("gap", unknown=90)}))
    assert none["other"] == 4
    decided = samples("gap", input=8, unknown=90)
    assert seconds(rank_of(tmp_path / "more", plain(20, gap=4), summary={"samples": decided}))["data_wait"] == 4


def test_mid_is_the_loss_unless_it_is_the_programs_own(tmp_path):
    assert seconds(rank_of(tmp_path, plain(20, mid=2)))["forward"] == 5
    counted = samples("mid", host=15, loss=5)
    found = seconds(rank_of(tmp_path / "host", plain(20, mid=2), summary={"samples": counted}))
    assert (found["forward"], found["other"]) == (3.5, 1.5)


def test_an_input_made_between_backward_and_step_is_waiting_for_data(tmp_path):
    counted = samples("other", host=5, input=15)
    found = seconds(rank_of(tmp_path, plain(20, other=4), summary={"samples": counted}))
    assert (found["data_wait"], found["other"]) == (3, 1)


def test_other_stays_other_without_samples(tmp_path):
    assert seconds(rank_of(tmp_path, plain(20, other=4)))["other"] == 4


def test_updates_by_hand_are_the_optimizers(tmp_path):
    by_hand = plain(20, optimizer=0, gap=4, flags=FLAG_BY_BACKWARD | FLAG_FRESH)
    assert seconds(rank_of(tmp_path, by_hand))["optimizer"] == 4
    counted = samples("gap", update=20, input=10, host=10)
    found = seconds(rank_of(tmp_path / "counted", by_hand, summary={"samples": counted}))
    assert (found["optimizer"], found["data_wait"], found["other"]) == (2, 1, 1)


@pytest.mark.parametrize("slot", ["gap", "mid", "other"])
def test_what_an_optimizer_of_the_programs_own_does_is_the_optimizers(tmp_path, slot):
    """SAM climbs between two backward passes."""
    counted = samples(slot, optimizer=30, host=10)
    found = seconds(rank_of(tmp_path, plain(20, optimizer=1, **{slot: 4}), summary={"samples": counted}))
    assert (found["optimizer"], found["other"]) == (4, 1)


def test_a_model_by_hand_computes_in_its_gap(tmp_path):
    """No module and no optimizer: everything between two backward passes is gap."""
    by_hand = steps(20, backward=5, gap=10, flags=FLAG_BY_BACKWARD)
    assert seconds(rank_of(tmp_path, by_hand)) == {"forward": 10, "backward": 5}
    counted = samples("gap", loss=30, update=10)
    found = seconds(rank_of(tmp_path / "counted", by_hand, summary={"samples": counted}))
    assert found == {"forward": 7.5, "backward": 5, "optimizer": 2.5}


# -- communication -----------------------------------------------------------------------------------


def waiting(tmp_path, contention: float = 0.0, **more) -> dict[str, float]:
    rows = plain(20, forward_blocked=1, backward_blocked=4)
    two_ranks(folder := RunFolder(tmp_path), [rows, rows], contention=contention, **more)
    return seconds(folder.launch().read().ranks[0])


def measured(exposed_ms, count=10):
    """What DistributedDataParallel timed itself."""
    return {"exchange_times": [{"count": count, "exposed_s": exposed_ms / 1e3}] if count else []}


@pytest.mark.parametrize(
    "synced, summary, waited",
    [
        (1, measured(4), 4),
        (1, measured(1), 1),  # it slept for the rest
        (3, measured(1), 3),  # DDP times one pass, and the step has three
        (1, measured(0, count=0), 4),  # too few steps to be timed
        (0, measured(4), 0),  # no gradients were reduced
    ],
)
def test_a_rank_that_sleeps_in_its_forward_or_backward_waits_for_nobody(tmp_path, synced, summary, waited):
    """The recorder measures where ranks wait: time off the CPU elsewhere is the program's own."""
    rows = plain(20, forward_blocked=3, backward_blocked=4, synced=synced)
    rank = rank_of(tmp_path, rows, meta={"distributed": True, "world": 2}, summary=summary)
    expected = {"forward": 3, "backward": 6 - waited, "optimizer": 1, "communication": waited}
    assert seconds(rank) == {name: spent for name, spent in expected.items() if spent}


def test_time_off_the_cpu_in_a_distributed_backward_is_communication(tmp_path):
    assert waiting(tmp_path) == {"forward": 2, "backward": 2, "optimizer": 1, "communication": 5}


def test_time_kept_from_the_cpu_is_not(tmp_path):
    """A thread that is ready half as long as it runs was kept off for 1 of 2 ms on a CPU, in each of both phases."""
    found = waiting(tmp_path, contention=0.5)
    assert found["communication"] == pytest.approx(0 + 3)
    assert (found["forward"], found["backward"]) == pytest.approx((3, 3))


def test_time_off_the_cpu_of_a_single_process_is_not(tmp_path):
    rows = plain(20, forward_blocked=1, backward_blocked=4)
    assert "communication" not in seconds(rank_of(tmp_path, rows))


def test_what_was_not_measured_moves_nothing(tmp_path):
    two_ranks(folder := RunFolder(tmp_path), [plain(20), plain(20)])
    assert "communication" not in seconds(folder.launch().read().ranks[1])


def test_never_more_than_the_phase_itself(tmp_path):
    rows = plain(20, backward_blocked=50)
    two_ranks(folder := RunFolder(tmp_path), [rows, rows])
    found = seconds(folder.launch().read().ranks[0])
    assert (found["communication"], "backward" in found) == (6, False)


def test_runnable_ratio(tmp_path):
    assert runnable_ratio(rank_of(tmp_path, plain(20), contention=0.25)) == pytest.approx(0.25)
    assert runnable_ratio(rank_of(tmp_path / "none", plain(20), count=0)) == 0.0


# -- what counts as steady ---------------------------------------------------------------------------


def test_warm_up_is_left_out(tmp_path):
    rows = plain(60)
    for number in range(5):
        rows[number] = step(forward=300, backward=300)
    rank = rank_of(tmp_path, rows)
    assert len(steady(rank)) == 55
    found = break_down(rank, ())
    assert (found.warmup, found.steps) == (5, 60)
    assert found.step_s.value == pytest.approx(0.010)
    assert found.step_s.count == 55


def test_profiled_steps_are_left_out_unless_there_are_few_others(tmp_path):
    def rows(profiled: int):
        return steps(41, lambda n: {"flags": FLAG_PROFILED if n <= profiled else 0}, forward=10)

    assert len(steady(rank_of(tmp_path, rows(4)))) == 36
    assert len(steady(rank_of(tmp_path / "most", rows(30)))) == 40


def test_break_down(tmp_path):
    hot = [
        {"slot": "other", "side": "host", "function": "log (train.py:9)", "count": 30, "leaf": None},
        {"slot": "gap", "side": "host", "function": "plot (train.py:20)", "count": 10, "leaf": None},
        {"slot": "gap", "side": "input", "function": "read (train.py:3)", "count": 99, "leaf": None},
        {"slot": "mid", "side": "host", "function": "log (train.py:9)", "count": 10, "leaf": None},
        {"slot": "startup", "side": "", "function": "index (train.py:1)", "count": 500, "leaf": None},
    ]
    rank = rank_of(
        tmp_path, plain(61, wait=10, micro_steps=2), summary={"hot": hot}, rss=lambda share: 1e9 * (1 + share)
    )
    found = break_down(rank, ())
    assert (found.steps, found.micro_steps, found.warmup) == (61, 122, 1)
    assert found.shares == pytest.approx(
        {**dict.fromkeys(PHASES, 0.0), "data_wait": 0.5, "forward": 0.15, "backward": 0.3, "optimizer": 0.05}
    )
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.seconds["data_wait"] == pytest.approx(60 * 0.010)
    assert found.p95_s == pytest.approx(0.020)
    assert found.samples_per_s == pytest.approx(8 / 0.020)
    assert found.batch_size == 8
    assert found.peak_rss_bytes == 2e9
    assert found.peak_device_bytes is None
    assert [(f.function, f.count, f.share) for f in found.host_functions] == [
        ("log (train.py:9)", 40, 0.8),
        ("plot (train.py:20)", 10, 0.2),
    ]


def test_unknown_samples_are_none(tmp_path):
    found = break_down(rank_of(tmp_path, plain(20, samples=float("nan"))), ())
    assert (found.samples_per_s, found.batch_size) == (None, None)


def test_a_single_step(tmp_path):
    found = break_down(rank_of(tmp_path, plain(1)), ())
    assert (found.steps, found.warmup, found.step_s.count) == (1, 0, 1)


def test_hot_functions_merge_slots_and_keep_sides_apart(tmp_path):
    hot = [
        {"slot": "gap", "side": side, "function": "f (a.py:1)", "count": count, "leaf": None}
        for side, count in (("host", 4), ("input", 6))
    ]
    rank = rank_of(tmp_path, plain(5), summary={"hot": hot})
    assert [f.count for f in hot_functions(rank, {"gap": None})] == [10]
    assert [(f.count, f.share) for f in hot_functions(rank, {"gap": ("input",)})] == [(6, 1.0)]
    assert hot_functions(rank, {"mid": None}) == []


def test_startup_is_from_the_command_to_the_first_moment(tmp_path):
    run = RunFolder(tmp_path).rank(plain(5)).launch(started_ns=FIRST_NS - 7 * S).read()
    assert startup_s(run.ranks[0], run.launches) == pytest.approx(7.0, abs=1e-3)


def test_startup_of_a_process_whose_command_is_on_another_host(tmp_path):
    run = RunFolder(tmp_path).rank(plain(5)).launch(host="node-b").read()
    assert startup_s(run.ranks[0], run.launches) == pytest.approx(2.0, abs=1e-3)


def test_startup_is_not_known_without_clocks(tmp_path):
    run = RunFolder(tmp_path).rank(plain(5), meta={"epoch_offset_ns": None}).launch().read()
    assert startup_s(run.ranks[0], run.launches) is None


# -- timeline and shares -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 500, 1999, 2000, 2001, 6001])
def test_buckets_of_the_timeline_sum_to_the_run(tmp_path, count):
    rank = rank_of(tmp_path, steps(count, lambda n: {"forward": 1 + n % 7, "data_wait": n % 3}), count=2)
    points = timeline(rank)
    walls = column(rank.steps, "wall_s")
    assert len(points) == min(count, 2000)
    assert sum(p.steps for p in points) == count
    assert sum(p.steps * p.step_s for p in points) == pytest.approx(walls.sum())
    assert max(p.slowest_s for p in points) == pytest.approx(walls.max())
    assert all(p.slowest_s >= p.step_s - 1e-12 for p in points)
    assert all(sum(p.shares) == pytest.approx(1.0, abs=1e-5) for p in points)
    waited = sum(p.steps * p.step_s * p.shares[PHASES.index("data_wait")] for p in points)
    assert waited == pytest.approx(column(rank.steps, "data_wait_s").sum())
    begins = [p.seconds for p in points]
    assert begins[0] == 0.0
    assert begins == sorted(begins)
    assert [p.step for p in points[1:]] == np.cumsum([p.steps for p in points])[:-1].tolist()


def test_a_timeline_of_nothing(tmp_path):
    rank = RunFolder(tmp_path).rank([step(forward=1)]).launch().read().ranks[0]
    assert timeline(Rank(**{**rank.__dict__, "steps": rank.steps[:0]})) == []


def test_shares_of_ranks_are_medians_that_sum_to_one(tmp_path):
    folder = RunFolder(tmp_path)
    two_ranks(folder, [plain(20, wait=wait) for wait in (0, 10, 40)])
    found = median_shares([break_down(r, ()) for r in folder.launch().read().ranks])
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["data_wait"] == pytest.approx(0.5)
    assert median_shares([]) == {}
    assert OFFSET_NS > 0


# -------------------------------------------------------------------------------------------------- times of the device


TIMED = FLAG_FRESH | FLAG_DEVICE_TIMED


def phases_of(tmp_path, rows):
    run = RunFolder(tmp_path).rank(rows, meta=META).launch().read()
    return phase_columns(run.ranks[0], run.ranks[0].steps), steady(run.ranks[0])


def one_in_four(number):
    """In every fourth step the device is timed (3, 6, 1 ms); in the others the host waits in the transfer."""
    if number % 4 == 0:
        return {"forward": 3, "backward": 6, "optimizer": 1, "flags": TIMED}
    return {"transfer": 9, "forward": 0.4, "backward": 0.4, "optimizer": 0.2, "flags": FLAG_FRESH}


def test_the_others_get_the_shares_of_the_timed(tmp_path):
    columns, _ = phases_of(tmp_path, steps(80, one_in_four))
    assert columns["forward"] == pytest.approx(np.full(80, 0.003), rel=1e-4)
    assert columns["transfer"] == pytest.approx(np.zeros(80), abs=1e-9)


def test_a_long_step_is_booked_where_the_host_was_longer_than_usual(tmp_path):
    rows = steps(80, one_in_four)
    rows[41] = step(transfer=9, forward=0.4, backward=0.4, optimizer=0.2, checkpoint=500, flags=FLAG_FRESH)
    columns, _ = phases_of(tmp_path, rows)
    assert columns["checkpoint"][41] == pytest.approx(0.5, rel=1e-4)
    assert columns["backward"][41] == pytest.approx(0.006, rel=1e-4)


def test_a_few_timed_steps_do_not_speak_for_all(tmp_path):
    rows = steps(40, lambda n: one_in_four(0 if n < 7 else 1))
    columns, _ = phases_of(tmp_path, rows)
    assert columns["transfer"][-1] == pytest.approx(0.009, rel=1e-4)


@given(
    arrays(float, (11, 40), elements=st.floats(0, 10)),
    arrays(bool, 40),
)
def test_sums_stay_and_nothing_gets_negative(table, timed):
    rows = np.zeros(40, dtype=STEP_TYPE)
    rows["flags"] = np.where(timed, FLAG_DEVICE_TIMED, 0)
    found = np.stack(list(at_the_device(rows, dict(zip(SLOTS, table.copy()))).values()))
    assert found.min() >= -1e-9
    assert found.sum(axis=0) == pytest.approx(table.sum(axis=0), abs=1e-6) or table[:, timed].sum() == 0
