"""Comparisons on a GPU with room for one process: blocks take turns, each in a process of its own."""

from __future__ import annotations

import time

import pytest

from paceline.core.recipe import BASELINE
from paceline.tune.comparison.model import TIME, ComparisonSpec, Deadline
from paceline.tune.search.budget import Budget
from paceline.tune.search.runner import TrialRunner
from paceline.tune.trials.blocks import ProgramFailed, StepBlock
from paceline.tune.trials.gpus import GpuMemory, GpuSampler

FASTER = {"compute": {"num_threads": 1}}


class Card:
    """A GPU with room for some processes at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.processes: list[Process] = []
        self.played: list[tuple[dict, int, int]] = []  # recipe, first step, number of steps of each block
        self.started = 0


class Process:
    """Stands for a player: the program in a process that uses the card."""

    def __init__(self, card: Card, recipe: dict, folder) -> None:
        self.card, self.recipe, self.folder = card, recipe, folder
        self.gpus = GpuSampler(lambda: None)
        self.steps = 0
        card.started += 1
        card.processes.append(self)

    has_failed, last_steps = False, 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.card.processes.remove(self)

    def begin(self, timeout_s: float = 0.0):
        if len(self.card.processes) > self.card.room:
            raise ProgramFailed("the program ended with code 1: torch.OutOfMemoryError: CUDA out of memory.")

    def run_steps(self, steps, timeout_s, *, pause=True):
        self.card.played.append((self.recipe, self.steps, steps))
        self.steps += steps
        seconds = steps * (0.01 if self.recipe else 0.04) * (1 + 0.01 * (self.card.started % 3))
        return StepBlock(steps=steps, seconds=seconds, cpu_s=0.1, other_cores=0.0)


@pytest.fixture
def on_a_card(tmp_path, monkeypatch):
    def made(room: int, used: float) -> tuple[TrialRunner, Card]:
        card = Card(room)
        found = TrialRunner(["train.py"], tmp_path, tmp_path, TIME, Budget(total_s=600.0))
        monkeypatch.setattr(found, "start", lambda recipe, environment=None: Process(card, recipe, tmp_path))
        monkeypatch.setattr("paceline.tune.search.runner.unapplied_settings", lambda recipe, folder: {})
        found.step_s, found.start_s = 0.04, 3.0
        found._set_copies([GpuMemory(uuid="a", free_bytes=(1 - used) * 80e9, total_bytes=80e9)])
        return found, card

    return made


def race_of(runner: TrialRunner):
    ends = time.monotonic() + 60
    return runner.compare(
        ComparisonSpec(before=BASELINE, after=FASTER, warmup_steps=7), Deadline(usual=ends, promising=ends, large=ends)
    )


def test_with_room_both_processes_live_at_a_time(on_a_card):
    runner, card = on_a_card(2, used=0.3)
    assert (race_of(runner).verdict, card.started) == ("win", 2)


def test_without_room_each_block_has_a_process_of_its_own(on_a_card):
    runner, card = on_a_card(1, used=0.6)
    race = race_of(runner)
    assert race.verdict == "win"
    assert 3 < race.speedup.value < 5
    pairs = sum(len(one.pairs) for one in race.rounds)
    assert card.started == 2 + 2 * pairs  # one of each to hear what it refuses, then one for each block
    blocks = [block for block in card.played if block[1] > 0]
    assert {first for _, first, _ in blocks} == {7}  # the same steps, after the same warm-up
    assert all(len({steps for _, _, steps in blocks[i : i + 2]}) == 1 for i in range(2, len(blocks), 2))


def test_a_second_process_that_finds_no_memory_is_started_after_the_first(on_a_card):
    runner, card = on_a_card(1, used=0.3)  # the driver says that there is room
    assert race_of(runner).verdict == "win"
    assert (runner._at_a_time, runner._equivalence.at_a_time, card.processes) == (1, 1, [])


def test_room_is_decided_by_what_one_process_uses(on_a_card):
    for used, at_a_time in ((0.1, 3), (0.4, 2), (0.6, 1)):
        runner, _ = on_a_card(1, used=used)
        assert (runner._at_a_time, runner._equivalence.at_a_time) == (at_a_time, min(2, at_a_time))
    runner.measure_variation(0.04, None, waits=False)  # processes of the baseline are not compared
    assert runner.compared == 0
