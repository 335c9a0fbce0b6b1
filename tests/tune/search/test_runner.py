"""What goes wrong elsewhere when training is changed from outside: is each caught by the proof, or avoided?"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.core.recipe import BASELINE, Recipe
from paceline.record.read import read_run
from paceline.tune.comparison.model import GOALS, ComparisonSpec, Deadline
from paceline.tune.search.budget import Budget
from paceline.tune.search.runner import TrialRunner
from paceline.tune.trials.blocks import ProgramFailed, ProgramOver, TrialFailed
from paceline.tune.trials.process import TrialProcess

# A fault is planted by the recipe itself, so that only the candidate has it, as if a remedy had brought it.
PLANTED = """
import json, os
planted = json.loads(os.environ.get("PACELINE_RECIPE", "{}")).get("planted", {})
"""

TRAINS = (
    PLANTED
    + """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        moved = torch.rand(1).item() if planted.get("augments") else 0.0
        return torch.full((4,), index + moved), index % 3

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(7)
    kept = bool(planted.get("kept"))
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=kept)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    dropout = torch.nn.Dropout(0.0 if planted.get("dropout_off") else 0.5)
    model = torch.nn.Sequential(inner, dropout, torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.0 if planted.get("no_decay") else 0.001)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    step = 0
    for epoch in range(1000):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            for p in model.parameters() if planted.get("signs") else ():
                p.grad.sign_()
            if planted.get("recomputes"):
                with torch.no_grad():
                    inner(x)
            step += 1
            if not (planted.get("skips") and step % 4 == 0):
                optimizer.step()
            scheduler.step()
            if planted.get("schedules_twice"):
                scheduler.step()
"""
)

SOON = Deadline(usual=0.0, promising=0.0, large=0.0)  # as little time as a race takes
SEEDED_BY_THE_CLOCK = TRAINS.replace("torch.manual_seed(7)", "import time; torch.manual_seed(time.time_ns() % 2**60)")


def workshop_of(folder: Path, source: str) -> TrialRunner:
    """A runner for a program whose steps take about 10 ms, twenty an epoch."""
    (folder / "train.py").write_text(textwrap.dedent(source))
    runner = TrialRunner([sys.executable, "train.py"], folder / "trials", folder, GOALS["time"], Budget(total_s=60.0))
    runner.measure_variation(0.01, 20, waits=False)
    return runner


@pytest.fixture(scope="module")
def trains(tmp_path_factory):
    return workshop_of(tmp_path_factory.mktemp("trains"), TRAINS)


def failed(runner: TrialRunner, recipe: Recipe, safety: Any = "exact", reference: Recipe = BASELINE) -> set[str]:
    return {check.name for check in runner.check_equivalence(recipe, [safety], reference) if not check.passed}


@pytest.mark.parametrize(
    "fault, safety, found",
    [
        ("kept", "exact", {"samples", "losses", "gradients", "parameters", "buffers"}),  # the shuffle shifts
        ("recomputes", "exact", {"buffers"}),  # BatchNorm sees each batch twice
        ("recomputes", "numeric", {"buffers"}),
        ("skips", "exact", {"samples"}),  # more is fed for as many steps
        ("schedules_twice", "numeric", {"schedule"}),
        ("signs", "numeric", {"gradients"}),
        ("no_decay", "numeric", {"optimizer"}),
        ("dropout_off", "numeric", {"gradients", "dropout"}),
    ],
)
def test_the_proof_finds_what_is_planted(trains, fault, safety, found):
    assert failed(trains, {"planted": {fault: True}}, safety) >= found


def test_the_proof_finds_nothing_where_nothing_changed(trains):
    assert failed(trains, {"loader": {"num_workers": 2}}) == set()


def test_rounding_passes_where_the_algorithm_is_the_same(trains):
    assert failed(trains, {"precision": {"autocast": "bf16"}}, "numeric") <= {"losses"}


def test_random_augmentation_depends_on_the_worker(trains):
    """Each worker draws from a stream of its own: with another number of them the samples are others."""
    augments: Mapping[str, Any] = {"planted": {"augments": True}}
    assert "samples" in failed(trains, {**augments, "loader": {"num_workers": 2}}, reference=augments)


BARE: list[str] = []  # what the next program prints without a recipe


@pytest.mark.parametrize(
    "recipe", [{"num_workers": 2, "persistent_workers": True}, {"num_workers": 0, "threads": 2}], ids=["more", "none"]
)
def test_a_program_that_keeps_its_workers_shuffles_as_it_did(ran, recipe):
    """It draws once where other loaders draw in every epoch: a recipe must not bring the other draws back."""
    source = """
    import torch
    from torch.utils.data import DataLoader
    torch.manual_seed(7)
    loader = DataLoader(list(range(12)), 6, shuffle=True, num_workers=1, persistent_workers=True)
    print([[batch.tolist() for batch in loader] for epoch in range(3)], torch.rand(1))
    """
    changed = ran(source, {"loader": recipe})
    if not BARE:
        BARE.append(ran(source).out)
    assert changed.out == BARE[0]


def test_a_program_that_is_another_each_time_cannot_be_proven(tmp_path):
    runner = workshop_of(tmp_path, SEEDED_BY_THE_CLOCK)
    (samples,) = [
        c for c in runner.check_equivalence({"loader": {"num_workers": 2}}, ["exact"], BASELINE) if c.name == "samples"
    ]
    assert not samples.passed
    assert "the inputs of the baseline differ from run to run" in samples.text


# -- programs that do not behave ---------------------------------------------------------------------

CATCHES = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    except BaseException:
        print("caught", flush=True)
    finally:
        print("cleaned up", flush=True)
"""

SWALLOWS = (
    PLANTED
    + """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    try:
        if planted.get("breaks"):
            raise RuntimeError("out of memory")
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    except Exception:
        pass
"""
)

UNGUARDED = """
import torch
from torch.utils.data import DataLoader
torch.multiprocessing.set_start_method("spawn", force=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.step()
for _ in range(100):
    for x in DataLoader([torch.ones(1)] * 8, 2):
        model(x).sum().backward()
        optimizer.step()
"""

SOON_OVER = """
import time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for _ in range(150):
        time.sleep(0.002)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

FLAKY = """
import os, sys
import torch
handle = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(handle, b"x")
if os.fstat(handle).st_size in {fails}:
    raise ValueError("now and then")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def player_of(folder: Path, source: str, recipe: Recipe = BASELINE) -> TrialProcess:
    (folder / "train.py").write_text(textwrap.dedent(source))
    return TrialProcess([sys.executable, "train.py"], recipe, folder / "trial", {}, folder)


def test_a_program_that_catches_everything_ends_at_a_step_boundary(tmp_path):
    with player_of(tmp_path, CATCHES) as player:
        player.begin()
        player.run_steps(5, 60.0)
        player.end()
        run = read_run(player.folder)
    assert len(run.ranks[0].steps) == 6
    assert (tmp_path / "trial" / "output.txt").read_text() == 5 * "cleaned up\n"


def test_a_program_that_trains_in_a_thread_of_its_own(tmp_path):
    source = """
import threading
import torch

def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

threading.Thread(target=train).start()
"""
    with player_of(tmp_path, source) as player:
        player.begin()
        assert player.run_steps(5, 60.0).steps == 5
        player.end()
        run = read_run(player.folder)
    assert len(run.ranks[0].steps) == 6


def test_a_candidate_whose_faults_are_swallowed_has_made_no_step(tmp_path):
    with (
        player_of(tmp_path, SWALLOWS, {"planted": {"breaks": True}}) as player,
        pytest.raises(ProgramOver, match="before the first step of a torch optimizer"),
    ):
        player.begin()


def test_a_spawned_worker_that_runs_the_whole_script_again(tmp_path):
    """The second script would train in the worker's place, and be conducted beside the first, or wait for ever."""
    with (
        player_of(tmp_path, UNGUARDED, {"loader": {"num_workers": 1}}) as player,
        pytest.raises(ProgramFailed, match="exited unexpectedly"),
    ):
        player.begin(60.0)
        player.run_steps(5, 60.0)


def test_two_epochs_in_a_second_are_measured(tmp_path):
    runner = workshop_of(tmp_path, SOON_OVER)
    runner.watch(BASELINE)
    race = runner.compare(ComparisonSpec(before=BASELINE, after={"compute": {"num_threads": 1}}), SOON)
    assert len(race.rounds[0].pairs) >= 4
    assert race.verdict != "win"


@pytest.mark.parametrize("fails, ends", [("(2,)", None), ("range(2, 100, 2)", "now and then")], ids=["once", "always"])
def test_a_program_that_fails_by_itself_now_and_then(tmp_path, fails, ends):
    """A fault of its own is not blamed on what is tried, unless it comes again."""
    (tmp_path / "train.py").write_text(FLAKY.format(fails=fails))
    counted = Path("/dev/shm") / f"paceline-test-{tmp_path.name}"
    counted.touch()  # what lay there before is no file of a trial's
    runner = TrialRunner(
        [sys.executable, "train.py", str(counted)], tmp_path / "trials", tmp_path, GOALS["time"], Budget(total_s=60.0)
    )
    contest = ComparisonSpec(before=BASELINE, after={"compute": {"num_threads": 1}})
    try:
        runner.measure_variation(0.02, None, waits=False)
        if ends is None:
            assert runner.compare(contest, SOON).rounds
        else:
            with pytest.raises(TrialFailed, match=ends):
                runner.compare(contest, SOON)
    finally:
        counted.unlink(missing_ok=True)


@pytest.mark.parametrize("queued", [0, 30], ids=["no workers", "many batches in front"])
def test_a_program_too_short_to_measure_is_said_to_have_the_steps_that_it_has(tmp_path, queued):
    """Steps before the first block, and those of the block in which it ends, belong to the program too."""
    loader = f"num_workers={int(queued > 0)}" + f", prefetch_factor={queued}" * (queued > 0)
    short = TRAINS.replace("range(1000)", "range(1)").replace("return 80", "return 200")
    runner = workshop_of(tmp_path, short.replace("num_workers=1, persistent_workers=kept", loader))
    spec = ComparisonSpec(before=BASELINE, after={"optimizer": {"fused": True}}, warmup_steps=100)
    with pytest.raises(TrialFailed, match="the program ends after 50 steps"):
        runner.compare(spec, SOON)


@pytest.mark.parametrize("block", [30, 60], ids=["the candidate ends", "the baseline ends"])
def test_the_steps_of_a_short_program_are_counted_in_the_process_that_ends(tmp_path, block):
    """In the first pair of blocks the baseline runs first, in the second one the candidate."""
    short = TRAINS.replace("range(1000)", "range(1)").replace("return 80", "return 200")
    runner = workshop_of(tmp_path, short.replace("num_workers=1, persistent_workers=kept", "num_workers=0"))
    runner.step_s = runner._block_s / block
    spec = ComparisonSpec(before=BASELINE, after={"optimizer": {"fused": True}}, warmup_steps=100)
    with pytest.raises(TrialFailed, match="the program ends after 50 steps"):
        runner.compare(spec, SOON)
