"""Is a checkpoint that is written while training goes on that of the call, and is one always whole?"""

from __future__ import annotations

import threading

import pytest
import torch
from tests.train.launching import on_ranks, results_of
from tests.train.small_model import engine_of, linear_engine, step

from paceline.core.errors import EnvironmentFault
from paceline.train.checkpoints import folder as checkpoints

PROGRAM = """
import sys, threading
import torch
from torch.distributed import checkpoint
from tests.train.small_model import begin, engine_of, finish, step
from paceline.core.errors import EnvironmentFault
from paceline.train.checkpoints import folder as checkpoints

OUT = begin()
write, may_write = checkpoint.save, threading.Event()
put_in_place = checkpoints.put_in_place


def late(*args, **kwargs):
    if threading.current_thread() is not threading.main_thread():
        assert may_write.wait(60)
    return write(*args, **kwargs)


def full(*_):
    raise OSError("no space left")


def goes_on(layout):
    'Losses after a checkpoint that was waited for, and after one that was written during other steps.'
    may_write.clear()
    engine, best = engine_of(layout), torch.ones(2)
    step(engine, 2)
    engine.save(OUT.parent / f"{layout} 1")
    engine.save(OUT.parent / f"{layout} 2", extra={"best": best}, wait=False)
    best.zero_()
    step(engine, 2)
    for state in engine._optimizer.state.values():
        for value in state.values():
            value.zero_()
    may_write.set()
    step(engine, 2)
    engine.close()
    losses = []
    for number in (1, 2):
        again = engine_of(layout)
        extra = again.load(OUT.parent / f"{layout} {number}")
        losses.append(step(again, 2))
    return [*losses, extra["best"].tolist()]


def fails():
    'What each rank says at the end, where rank 0 could not write.'
    checkpoints.put_in_place = full
    engine = engine_of("dp=2")
    engine.save(OUT.parent / "full", wait=False)
    try:
        engine.close()
    except EnvironmentFault as error:
        said = str(error)
    checkpoints.put_in_place = put_in_place
    every = [None, None]
    torch.distributed.all_gather_object(every, said)
    return every


checkpoint.save = late
found = {layout: goes_on(layout) for layout in ("dp=2", "shard=2", "tp=2", "pp=2")}
found["fails"] = fails()
finish(found)
"""
LAYOUTS = ["dp=2", "shard=2", "tp=2", "pp=2"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return results_of(PROGRAM, 2, tmp_path_factory.mktemp("background"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_later_is_what_was_there_at_the_call(found, layout):
    waited, went_on, best = found[layout]
    assert went_on == waited
    assert best == [1.0, 1.0]


def test_all_ranks_learn_that_one_could_not_write(found):
    assert len(found["fails"]) == 2
    assert all("could not be written (OSError: no space left)" in said for said in found["fails"])


@pytest.mark.parametrize(
    "at_last",
    [
        lambda engine, folder: engine.save(folder),
        lambda engine, folder: engine.save(folder, wait=False),
        lambda engine, folder: engine.load(folder),
        lambda engine, folder: engine.close(),
    ],
    ids=["next save", "next save in the background", "load", "end"],
)
def test_an_error_comes_at_the_next_call(tmp_path, monkeypatch, capfd, at_last):
    folder = tmp_path / "last"
    engine = linear_engine(1)
    engine.save(folder)
    engine = linear_engine(2)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints, "put_in_place", full)
    engine.save(folder, wait=False)
    with pytest.raises(EnvironmentFault, match="last could not be written .OSError: no space left.; an earlier"):
        at_last(engine, folder)
    monkeypatch.undo()
    assert "no space left" in capfd.readouterr().err
    engine.load(folder)
    assert engine.steps == 1
    engine.save(folder, wait=False)
    engine.close()


def test_a_save_waits_for_the_one_before(tmp_path, monkeypatch):
    begun, may_end, put_in_place = threading.Event(), threading.Event(), checkpoints.put_in_place

    def slow(*args):
        begun.set()
        assert may_end.wait(30)
        put_in_place(*args)

    monkeypatch.setattr(checkpoints, "put_in_place", slow)
    engine = linear_engine(1)
    engine.save(tmp_path / "one", wait=False)
    assert begun.wait(30)
    assert not (tmp_path / "one").exists()
    threading.Timer(0.1, may_end.set).start()
    engine.save(tmp_path / "two", wait=False)
    assert (tmp_path / "one").exists()
    engine.close()
    assert (tmp_path / "two").exists()


def test_the_thread_that_writes_leaves_the_gpu_alone(tmp_path, monkeypatch):
    """In a thread the current stream is that of GPU 0, and waiting for it begins a context there on every rank."""
    used = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: used.append(threading.current_thread().name))
    engine = linear_engine(1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    engine.save(tmp_path / "last", wait=False)
    engine._background_saves._threads.shutdown()
    monkeypatch.undo()
    engine.close()
    assert used == []
    engine.load(tmp_path / "last")


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from torch.distributed import checkpoint
from tests.train.small_model import begin, engine_of, step
from paceline.train.checkpoints import folder as checkpoints

folder, layout, point, wait, rank = begin(), *sys.argv[2:]
engine = engine_of(layout)
step(engine)
engine.save(folder)
step(engine)
rename, rmtree = Path.rename, shutil.rmtree


def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


if str(torch.distributed.get_rank()) == rank:
    if point == "written":
        checkpoint.FileSystemWriter.write_data = kill
    if point == "complete":
        checkpoints.put_in_place = kill
    if point == "between":
        Path.rename = lambda path, to: kill() if "part" in path.name else rename(path, to)
    if point == "removed":
        shutil.rmtree = lambda path, **options: kill() if "old" in path.name else rmtree(path, **options)
engine.save(folder, wait=wait == "wait")
engine.close()
"""
POINTS = [("written", "0"), ("written", "1"), ("complete", "0"), ("between", "0"), ("removed", "0")]
CASES = [(layout, *point, wait) for layout in ("shard=2",) for point in POINTS for wait in ("wait", "go on")]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    program, words = folder / "program.py", []
    program.write_text(KILLED)
    for layout, point, rank, wait in CASES:
        words += ["+", "2", program, folder / f"{point} {rank} {wait}", layout, point, wait, rank]
    on_ranks(2, *words[2:], timeout_s=150)
    return folder


@pytest.mark.parametrize(("layout", "point", "rank", "wait"), CASES)
def test_a_run_that_is_killed_while_it_saves_keeps_a_checkpoint(killed, layout, point, rank, wait):
    number = CASES.index((layout, point, rank, wait))
    assert (killed / f"program.py.{number}.code").read_text() != "0"
    engine = engine_of("dp=1")
    engine.load(killed / f"{point} {rank} {wait}")
    assert engine.steps == (2 if point in ("between", "removed") else 1)
    assert step(engine) > 0
