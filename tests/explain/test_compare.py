"""Is the right thing said of two runs whose steps are known?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.explain.build import RunFolder, training
from tests.explain.build import plain as plain_steps
from tests.explain.written_run import steady_rows, step, write_launch, write_rank, write_run

from paceline.core import units
from paceline.core.errors import UsageError
from paceline.core.statistics import Interval
from paceline.explain.compare import compare, outcome_of
from paceline.explain.comparison import Comparison
from paceline.record import layout
from paceline.record.read import read_run

COUNT = 200
TOLERANCE = 0.05


def walls(mean: float, seed: int, spread: float = 0.02, count: int = COUNT) -> np.ndarray:
    return mean * np.exp(spread * np.random.default_rng(seed).standard_normal(count))


def compared(before: Path, after: Path, tolerance: float = TOLERANCE) -> Comparison:
    return compare(read_run(before), read_run(after), tolerance)


def pair(tmp_path: Path, before: list[bytes], after: list[bytes]) -> Comparison:
    return compared(write_run(tmp_path / "before", before), write_run(tmp_path / "after", after))


def with_one_objective(folder: Path) -> Path:
    (rank,) = (folder / layout.RANKS_DIR).iterdir()
    (rank / layout.SUMMARY_FILE).write_text(json.dumps({"training": training()}))
    return folder


def plain(mean: float, seed: int, spread: float = 0.02, count: int = COUNT) -> list[bytes]:
    return steady_rows(walls(mean, seed, spread, count))


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.06, 1.20, "regression"),
        (1.00, 1.06, "cannot-tell"),
        (0.90, 1.30, "cannot-tell"),
        (1.01, 1.04, "slower"),
        (0.98, 1.03, "same"),
        (0.80, 0.95, "faster"),
    ],
)
def test_outcome_goes_by_the_interval(low: float, high: float, outcome: str) -> None:
    time = Interval(value=(low + high) / 2, low=low, high=high, count=100)
    assert outcome_of(time, TOLERANCE) == outcome


@pytest.mark.parametrize(
    ("factor", "outcome"), [(1.20, "regression"), (1.02, "slower"), (1.0, "same"), (0.8, "faster")]
)
def test_a_known_change_is_found(tmp_path: Path, factor: float, outcome: str) -> None:
    found = pair(tmp_path, plain(0.1, 1, 0.005), plain(0.1 * factor, 2, 0.005))
    assert found.outcome == outcome
    assert found.ratio is not None
    assert found.ratio.low <= factor * 1.002
    assert found.ratio.high >= factor * 0.998
    assert found.ratio.value == pytest.approx(factor, rel=0.01)


def test_noise_is_no_regression_and_is_said_to_be_noise(tmp_path: Path) -> None:
    found = pair(tmp_path, plain(0.1, 3, 0.6, 60), plain(0.1, 4, 0.6, 60))
    assert found.outcome == "cannot-tell"
    assert found.text.startswith("cannot tell")
    assert found.main is None


def test_a_wider_tolerance_accepts_more(tmp_path: Path) -> None:
    before = write_run(tmp_path / "before", plain(0.1, 1))
    after = write_run(tmp_path / "after", plain(0.12, 2))
    assert compared(before, after, 0.05).outcome == "regression"
    assert compared(before, after, 0.40).outcome == "slower"


def test_phase_that_changed_is_named(tmp_path: Path) -> None:
    before = steady_rows(walls(0.10, 1), {"data_wait": [0.01] * COUNT, "backward": [0.05] * COUNT})
    after = steady_rows(walls(0.13, 2), {"data_wait": [0.04] * COUNT, "backward": [0.05] * COUNT})
    found = pair(tmp_path, before, after)
    assert found.main is not None
    assert found.main.phase == "data_wait"
    assert found.main.change_s.value == pytest.approx(0.03, abs=1e-6)
    assert found.main.explains == pytest.approx(1.0, abs=0.1)
    by_name = {one.phase: one for one in found.phases}
    assert not by_name["backward"].certain
    assert "checkpoint" not in by_name


def test_phases_add_up_to_the_step(tmp_path: Path) -> None:
    before = steady_rows(walls(0.10, 1), {"data_wait": [0.01] * COUNT})
    after = steady_rows(walls(0.13, 2), {"data_wait": [0.03] * COUNT, "optimizer": [0.005] * COUNT})
    found = pair(tmp_path, before, after)
    assert found.time_before_s is not None
    assert found.time_after_s is not None
    assert sum(one.before_s for one in found.phases) == pytest.approx(found.time_before_s.value)
    assert sum(one.after_s for one in found.phases) == pytest.approx(found.time_after_s.value)
    assert sum(one.explains or 0 for one in found.phases) == pytest.approx(1.0)


def test_stall_in_every_tenth_step_is_seen_though_the_median_is_the_same(tmp_path: Path) -> None:
    usual = walls(0.1, 2, 0.005)
    stalled = usual + np.where(np.arange(COUNT) % 10 == 9, 0.4, 0.0)
    found = pair(tmp_path, plain(0.1, 1, 0.005), steady_rows(stalled))
    assert found.outcome == "regression"
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.4, rel=0.02)


def test_evaluations_in_the_same_steps_do_not_blur_the_result(tmp_path: Path) -> None:
    pauses = np.where(np.arange(COUNT) % 50 == 49, 2.0, 0.0)
    before, after = (steady_rows(walls(0.1, i, 0.005) + pauses, {"evaluation": pauses}) for i in (1, 2))
    found = pair(tmp_path, before, after)
    assert found.outcome == "same"


def test_profiled_steps_are_left_out(tmp_path: Path) -> None:
    slowed = plain(0.1, 2, 0.005)
    slowed[100:104] = [step(i, 5.0, flags=layout.FLAG_PROFILED) for i in range(100, 104)]
    assert pair(tmp_path, plain(0.1, 1, 0.005), slowed).outcome == "same"


def test_other_batch_size_is_compared_by_sample(tmp_path: Path) -> None:
    before = steady_rows(walls(0.1, 1), samples=32.0)
    after = steady_rows(walls(0.15, 2), samples=64.0)
    found = pair(tmp_path, before, after)
    assert (found.basis, found.outcome) == ("sample", "faster")
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(0.75, rel=0.02)
    assert {d.name: (d.before, d.after) for d in found.differences}["batch size of a rank"] == ("32", "64")


def test_unknown_batch_size_is_compared_by_step(tmp_path: Path) -> None:
    before = steady_rows(walls(0.1, 1), samples=float("nan"))
    assert pair(tmp_path, before, plain(0.1, 2)).basis == "step"


def test_ranks_count_all(tmp_path: Path) -> None:
    for name, factor in (("before", 1.0), ("after", 1.3)):
        write_launch(tmp_path / name)
        for rank in range(2):
            write_rank(tmp_path / name, plain(0.1 * factor, 3 + rank), rank=rank, world=2)
    found = compared(tmp_path / "before", tmp_path / "after")
    assert found.outcome == "regression"
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.3, rel=0.02)


def test_twice_the_ranks_for_the_same_step_is_twice_as_fast(tmp_path: Path) -> None:
    write_run(tmp_path / "before", plain(0.1, 1))
    write_launch(tmp_path / "after")
    for rank in range(2):
        write_rank(tmp_path / "after", plain(0.1, 3 + rank), rank=rank, world=2)
    found = compared(tmp_path / "before", tmp_path / "after")
    assert (found.basis, found.outcome) == ("sample", "faster")
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(0.5, rel=0.02)


def test_runs_of_unlike_length_share_their_first_steps(tmp_path: Path) -> None:
    found = pair(tmp_path, plain(0.1, 1), plain(0.1, 2, count=60))
    assert found.ratio is not None
    assert 50 <= found.ratio.count < 60


def test_too_few_steps_is_no_judgement(tmp_path: Path) -> None:
    found = pair(tmp_path, plain(0.1, 1), plain(0.5, 2, count=6))
    assert found.outcome == "cannot-tell"
    assert "12 are needed" in found.text
    assert found.ratio is None
    assert not found.phases


def test_run_without_steps_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "before", plain(0.1, 1))
    write_launch(tmp_path / "after", exit_code=1)
    with pytest.raises(UsageError, match="after has no training step.*exited with code 1.*paceline report after"):
        compared(tmp_path / "before", tmp_path / "after")


def test_same_losses_are_said_to_be_the_same(tmp_path: Path) -> None:
    rows = [step(i, 0.1, loss=2.0 / (i + 1)) for i in range(60)]
    found = pair(tmp_path, rows, rows)
    assert found.loss is not None
    assert (found.loss.steps_alike, found.loss.steps_common, found.loss.step) == (60, 60, 59)


def test_losses_are_compared_at_the_same_step(tmp_path: Path) -> None:
    before = [step(i, 0.1, loss=2.0 - 0.01 * i) for i in range(100)]
    after = [step(i, 0.1, loss=2.0 - (0.01 if i < 7 else 0.005) * i) for i in range(60)]
    found = pair(tmp_path, before, after)
    assert found.loss is not None
    assert (found.loss.steps_alike, found.loss.step) == (7, 59)
    assert found.loss.before.value == pytest.approx(2.0 - 0.01 * 49.5, abs=1e-6)
    assert found.loss.after.value == pytest.approx(2.0 - 0.005 * 49.5, abs=1e-6)


def test_new_and_gone_findings(tmp_path: Path) -> None:
    rows = steady_rows(walls(0.1, 1))
    saving = steady_rows(walls(0.14, 2), {"checkpoint": [0.04] * COUNT})
    write_run(tmp_path / "quiet", rows)
    write_run(tmp_path / "saving", saving)
    there = compared(tmp_path / "quiet", tmp_path / "saving")
    back = compared(tmp_path / "saving", tmp_path / "quiet")
    assert "RUN001" in [finding.code for finding in there.new]
    assert "RUN001" in [finding.code for finding in back.gone]
    assert "COMP001" not in [finding.code for finding in back.new]


def test_a_finding_that_a_shorter_run_cannot_show_is_not_gone(tmp_path: Path) -> None:
    flat = [step(i, 0.1, loss=4.0 * 0.99 ** min(i, 100)) for i in range(COUNT)]
    falling = [step(i, 0.1, loss=4.0 - 0.01 * i) for i in range(COUNT)]
    runs = {"long": flat, "short": flat[:80], "again": flat, "falling": falling}
    there, part, again, falls = (with_one_objective(write_run(tmp_path / name, rows)) for name, rows in runs.items())
    assert "CONV003" not in [f.code for f in (*compared(there, part).gone, *compared(part, there).new)]
    assert not compared(there, again).gone
    assert "CONV003" in [f.code for f in compared(there, falls).gone]


def test_a_run_that_is_too_short_for_findings_makes_none_new_or_gone(tmp_path: Path) -> None:
    waiting = write_run(tmp_path / "waiting", steady_rows(walls(0.14, 2), {"checkpoint": [0.04] * COUNT}))
    short = write_run(tmp_path / "short", steady_rows(walls(0.001, 1, count=40)))
    found, back = compared(short, waiting), compared(waiting, short)
    assert (list(found.new), list(back.gone)) == ([], [])
    assert any("the run before is too short for a diagnosis" in note for note in found.notes)


def test_a_run_compared_with_itself_is_said_to_be(tmp_path: Path) -> None:
    write_run(tmp_path / "one", plain(0.1, 1))
    assert any("the same run" in note for note in compared(tmp_path / "one", tmp_path / "one").notes)


def test_versions_that_differ_are_told(tmp_path: Path) -> None:
    write_run(tmp_path / "before", plain(0.1, 1), torch="2.11.0")
    write_run(tmp_path / "after", plain(0.1, 2), torch="2.13.0")
    found = compared(tmp_path / "before", tmp_path / "after")
    assert [(d.name, d.before, d.after) for d in found.differences] == [("torch", "2.11.0", "2.13.0")]


def test_a_recipe_is_a_difference(tmp_path: Path) -> None:
    for name, recipe in (("before", None), ("after", "unproven.toml")):
        write_run(tmp_path / name, plain(0.1, 1))
        write_launch(tmp_path / name, recipe=recipe)
    found = compared(tmp_path / "before", tmp_path / "after")
    assert [(d.name, d.before, d.after) for d in found.differences] == [("recipe", "none", "unproven.toml")]


def test_all_phases_slower_alike_speaks_for_the_machine(tmp_path: Path) -> None:
    def rows(factor: float, seed: int) -> list[bytes]:
        parts = {name: [0.03 * factor] * COUNT for name in ("data_wait", "backward")}
        return steady_rows(walls(0.1 * factor, seed), parts)

    found = pair(tmp_path, rows(1.0, 1), rows(1.3, 2))
    assert any("the machine is a more likely cause" in note for note in found.notes)
    assert not pair(tmp_path / "again", rows(1.0, 1), rows(1.0, 2)).notes


def test_run_that_failed_is_noted(tmp_path: Path) -> None:
    write_run(tmp_path / "before", plain(0.1, 1))
    write_launch(tmp_path / "after", exit_code=3)
    write_rank(tmp_path / "after", plain(0.1, 2))
    found = compared(tmp_path / "before", tmp_path / "after")
    assert any("did not finish: exited with code 3" in note for note in found.notes)


@pytest.mark.parametrize(
    ("waited", "others", "outcome"),
    [((0.0, 0.0), 2.0, "regression"), ((0.1, 0.7), 2.0, "cannot-tell"), ((0.1, 0.7), 0.0, "regression")],
)
def test_a_change_that_other_programs_may_have_made_is_no_regression(tmp_path, waited, others, outcome):
    """Steps take three times as long; of a step of the second run 70% is waiting for a core that others use."""
    runs = []
    for name, forward, share in zip(("before", "after"), (10, 30), waited, strict=True):
        folder = RunFolder(tmp_path / name).rank(plain_steps(100, forward=forward), contention=share)
        runs.append(folder.launch().gauges(own_cpu_cores=1.0, other_cpu_cores=others).read())
    found = compare(*runs, TOLERANCE)
    assert found.outcome == outcome
    assert ("idle machine" in found.text) == (outcome == "cannot-tell")


def test_beside_other_programs_only_what_is_certain_is_stated(tmp_path):
    """Steps take a tenth of the time, and 60% of a step of the first run is waiting for a core that others use."""
    runs = []
    for name, forward, share in zip(("before", "after"), (100, 10), (0.6, 0.0), strict=True):
        folder = RunFolder(tmp_path / name).rank(plain_steps(100, forward=forward), contention=share)
        runs.append(folder.launch().gauges(own_cpu_cores=1.0, other_cpu_cores=2.0).read())
    found = compare(*runs, TOLERANCE)
    assert (found.outcome, found.is_disturbed) == ("faster", True)
    least = 1 / found.ratio.high
    assert least < 0.5 / found.ratio.value
    assert f"at least {units.factor(least)} as fast" in found.text
    assert units.factor(1 / found.ratio.value) not in found.text
