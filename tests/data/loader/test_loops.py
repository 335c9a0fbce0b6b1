"""Loops over a loader: one at a time, none used up by a look, and states that belong to their data set."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from tests.data.making import folder_of_pictures

from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.data.batches.own_generators import own_generators
from paceline.data.convert.convert import Options, convert
from paceline.data.order.ranks import ranks_on_host
from paceline.data.sources.image_folder import image_folder

MODULE = np.random.default_rng(5)
THREADS = {"threads": 1}


def first(loader: Loader) -> list[int]:
    return next(iter(loader)).tolist()


def test_two_loops_at_a_time_are_an_error_and_not_silence():
    loader = Loader(list(range(8)), 2, **THREADS)
    with pytest.raises(UsageError, match="create two Loaders"):
        list(zip(loader, loader, strict=False))
    with pytest.raises(UsageError, match="ended this loop"):
        for _ in loader:
            for _ in loader:
                pass
    assert [a.tolist() for a, b in zip(loader, Loader(list(range(8)), 2, **THREADS), strict=True)][0] == [0, 1]


def test_a_loop_that_was_taken_to_its_end_just_ends():
    loader = Loader(list(range(4)), 2, **THREADS)
    batches = iter(loader)
    assert len(list(batches)) == 2
    assert len(list(loader)) == 2
    assert list(batches) == []


def test_a_look_at_the_first_batch_uses_up_no_epoch():
    def epochs(looks: int) -> list[list[int]]:
        loader = Loader(list(range(64)), 8, shuffle=True, **THREADS)
        for _ in range(looks):
            first(loader)
        return [torch.cat(list(loader)).tolist() for _ in range(2)]

    assert epochs(0) == epochs(1)


def test_whoever_takes_only_first_batches_does_not_get_the_same_one_for_ever():
    loader = Loader(list(range(64)), 8, shuffle=True, **THREADS)
    assert len({tuple(first(loader)) for _ in range(6)}) == 5


def test_a_state_of_another_conversion_is_refused(tmp_path):
    source = image_folder(folder_of_pictures(tmp_path / "in", 12))
    for seed in (0, 1):
        convert(source, tmp_path / str(seed), Options(seed=seed), 1, lambda done, whole: None)
    state = Loader(tmp_path / "0", 4).state_dict()
    with pytest.raises(UsageError, match="another data set of the same size"):
        Loader(tmp_path / "1", 4).load_state_dict(state)
    Loader(tmp_path / "0", 3).load_state_dict(state)
    del state["dataset"]  # as of older versions
    Loader(tmp_path / "1", 4).load_state_dict(state)


class Drawing:
    """Samples that draw from generators of every kind and place."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(0)
        self.inside = {"python": random.Random(0), "torch": [torch.Generator().manual_seed(0)]}
        self.old = np.random.RandomState(0)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        draws = self.numpy.random(), self.inside["python"].random(), self.old.random(), MODULE.random()
        return torch.tensor([number, *draws, torch.rand((), generator=self.inside["torch"][0]).item()])


def draws_of(dataset: Drawing, batch: int, **how: int) -> list[dict[int, tuple[float, ...]]]:
    loader = Loader(dataset, batch, shuffle=True, **how)
    return [{int(row[0]): tuple(row[1:].tolist()) for rows in loader for row in rows} for _ in range(2)]


def test_generators_of_a_dataset_draw_anew_for_each_sample_and_epoch():
    dataset = Drawing()
    before = dataset.numpy.bit_generator.state, MODULE.bit_generator.state
    here = draws_of(dataset, 2, threads=0)
    assert (dataset.numpy.bit_generator.state, MODULE.bit_generator.state) == before
    for kind in range(5):
        assert len({sample[kind] for epoch in here for sample in epoch.values()}) == 16
    assert draws_of(dataset, 4, processes=2) == here


def test_generators_of_the_process_and_of_libraries_are_not_taken_for_the_dataset():
    assert len(own_generators(Drawing())) == 5
    assert own_generators(list(range(4))) == []


class DrawingFromTheSystem(Drawing):
    """A Dataset with a generator that has no seed and no state."""

    def __init__(self) -> None:
        super().__init__()
        self.system = random.SystemRandom()


@pytest.mark.parametrize("how", [{"threads": 0}, {"processes": 1}])
def test_a_generator_of_the_system_is_left_alone(how):
    assert len(own_generators(DrawingFromTheSystem())) == 5
    assert draws_of(DrawingFromTheSystem(), 4, **how) == draws_of(Drawing(), 4, threads=0)


RANKS = """
    import logging, os, sys, torch, torch.multiprocessing as mp, torch.distributed as dist

    def main(rank, port):
        from paceline.data import Loader
        from paceline.data.order.ranks import ranks_on_host
        logging.basicConfig(format=f"{rank}: %(message)s", stream=sys.stdout)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        say = lambda *words: os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole lines of both ranks
        loader = Loader(list(range(8)), 2, threads=0)
        say(rank, "ranks", ranks_on_host(), "steps", len(list(loader)))
        dist.barrier()
        if rank == 0:
            say("alone", len(list(Loader(list(range(6)), 2, threads=0))))
            say("whole", len(list(Loader(list(range(6)), 2, threads=0, rank=0, world=1))))
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        import socket
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(main, (port,), nprocs=2)
"""


def test_ranks_of_spawn_share_the_host_and_a_rank_that_validates_alone_is_told(tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(textwrap.dedent(RANKS))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert {"0 ranks 2 steps 2", "1 ranks 2 steps 2", "alone 2", "whole 3"} <= set(done.stdout.splitlines())
    said = [line for line in (done.stdout + done.stderr).splitlines() if "ranks have read this loop" in line]
    assert len(said) == 1 and said[0].startswith("0: only 1 of 2 ranks")


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_NODEID": "0"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NODEID": "0"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "?"}, 1),
    ],
)
def test_launchers_say_how_many_ranks_share_a_host(monkeypatch, variables, ranks):
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks_on_host() == ranks


AT_THE_END = """
import atexit

atexit.register(lambda: print(loop._made.gi_frame is None))  # after the functions that are registered later

from paceline.data import Loader

loop = iter(Loader([1, 2, 3, 4], batch_size=2))
next(loop)
"""


def test_a_loop_that_is_open_at_the_end_is_closed_while_modules_still_exist(tmp_path):
    """torch's modules are gone when Python frees what is left: copies to a GPU could not be ended then."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")
