"""A replay of a CUDA graph counts as a step if the graph contains optimizer steps. A stand-in replaces the graph."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.inprocess import hooks
from paceline.inprocess.recorder.device import graphs
from paceline.inprocess.recorder.device.cuda_events import CudaEvents
from paceline.inprocess.recorder.probe_state import BACKWARD, FORWARD, MADE_OPTIMIZER, OPTIMIZER, gate
from paceline.inprocess.recorder.steps.state_machine import Automaton

BEGUN = {FORWARD: "forward", BACKWARD: "backward", OPTIMIZER: "optimizer"}


class CUDAGraph:
    def capture_begin(self):
        """Begin a capture."""

    def capture_end(self):
        """End a capture."""

    def replay(self):
        if getattr(self, "fails", False):
            raise RuntimeError("no memory")


@pytest.fixture
def graph():
    gate.reset()
    cuda = SimpleNamespace(CUDAGraph=CUDAGraph, is_initialized=lambda: True)
    graphs.patch(SimpleNamespace(cuda=cuda), CudaEvents(SimpleNamespace(cuda=cuda)), lambda: None)
    yield CUDAGraph()
    hooks.undo_all()
    gate.reset()


def capture(graph, *, backwards=0, steps=0):
    graph.capture_begin()
    gate.backwards += backwards
    gate.optimizer_steps += steps
    graph.capture_end()


def seen() -> list[str]:
    return [BEGUN[moment[1]] for moment in gate.moments if moment[1] in BEGUN]


def test_replays_of_whole_steps_are_steps(graph):
    capture(graph, backwards=1, steps=1)
    for _ in range(5):
        graph.replay()
    assert seen() == ["forward", "backward", "optimizer"] * 5
    rows = []
    automaton = Automaton(rows.append)
    automaton.feed((0, MADE_OPTIMIZER))
    for moment in gate.moments:
        automaton.feed(moment)
    automaton.finish(gate.moments[-1][0])
    assert sum(row.micro_steps for row in rows) == 5
    assert len(rows) in (5, 6)  # and what comes after the last step


def test_replays_without_optimizer_steps_are_no_steps(graph):
    capture(graph, backwards=1)
    graph.replay()
    assert seen() == ["forward", "backward"]


def test_replays_of_a_forward_or_an_update_alone_are_not_recorded(graph):
    capture(graph, steps=1)
    graph.replay()
    assert seen() == []


def test_replays_inside_a_forward_belong_to_it(graph):
    capture(graph, backwards=1, steps=1)
    gate.nested = True
    graph.replay()
    assert seen() == []


def test_a_second_capture_replaces_the_first(graph):
    capture(graph, backwards=1, steps=1)
    capture(graph)
    graph.replay()
    assert seen() == []


def test_a_replay_that_fails_is_no_step_and_its_error_reaches_the_program(graph):
    capture(graph, backwards=1, steps=1)
    graph.fails = True
    with pytest.raises(RuntimeError, match="no memory"):
        graph.replay()
    assert seen() == ["forward"]
    assert not gate.nested
