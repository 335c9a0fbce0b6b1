"""CUDA graphs of the program: no events during a capture, and the steps that are replays of a graph.

The hooks of forwards, backwards and optimizers run while a graph is captured, but not when the graph is replayed. The
counters of these hooks therefore show what a graph contains. A replay of a graph with a backward is recorded as a
forward with all the work of the graph and an empty backward; a replay of a graph with optimizer steps also ends a step.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from paceline.inprocess import hooks
from paceline.inprocess.identity import IdentityMap
from paceline.inprocess.recorder.device.cuda_events import CudaEvents
from paceline.inprocess.recorder.probe_state import BACKWARD, FORWARD, OPTIMIZER, gate
from paceline.inprocess.wrappers import stand_in


class _Content(NamedTuple):
    """The numbers of backward passes and of optimizer steps in a graph."""

    backwards: int
    steps: int


def patch(torch: Any, events: CudaEvents, before: Callable[[], None]) -> None:
    """Hook captures and replays of CUDA graphs. ``before`` is called just before each capture."""
    graph, contents = torch.cuda.CUDAGraph, IdentityMap[_Content]()
    begin, begun, ended = _capturing(events, before, contents)
    hooks.replace(graph, "capture_begin", stand_in(graph.capture_begin, "graph probe", begin, begun))
    hooks.replace(graph, "capture_end", stand_in(graph.capture_end, "graph probe", lambda args, kwargs: args[0], ended))
    hooks.replace(graph, "replay", stand_in(graph.replay, "graph probe", _replaying(contents), _replayed))


def _capturing(
    events: CudaEvents, before: Callable[[], None], contents: IdentityMap[_Content]
) -> tuple[Callable[..., Any], Callable[..., None], Callable[..., None]]:
    """Return what runs before ``capture_begin``, after it, and after ``capture_end``."""
    counted = _counts()

    def begin(args: Any, kwargs: Any) -> bool:
        nonlocal counted
        before()
        events.capture(True)
        counted = _counts()
        return True

    def begun(_: bool, result: Any, raised: BaseException | None) -> None:
        if raised is not None:
            events.capture(False)

    def ended(graph: Any, result: Any, raised: BaseException | None) -> None:
        events.capture(False)
        contents.set(graph, _Content(*(now - then for now, then in zip(_counts(), counted, strict=True))))

    return begin, begun, ended


def _counts() -> tuple[int, int]:
    """Return the numbers of backward passes and of visible optimizer steps so far."""
    return gate.backwards, gate.optimizer_steps


def _replaying(contents: IdentityMap[_Content]) -> Callable[[Any, Any], tuple[int, int] | None]:
    """Return what runs before ``replay``. A replay inside a forward or a backward is a part of it."""

    def begin(args: Any, kwargs: Any) -> tuple[int, int] | None:
        content = contents.get(args[0])
        if content is None or not content.backwards or gate.nested or get_ident() != gate.owner:
            return None
        number = id(args[0])
        gate.put((perf_counter_ns(), FORWARD, (True, True, number, None, True, False, None)))
        gate.nested = True
        return number, content.steps

    return begin


def _replayed(begun: tuple[int, int], result: Any, raised: BaseException | None) -> None:
    number, steps = begun
    gate.nested = gate.fed = False
    gate.put((perf_counter_ns(), FORWARD + 1, None))
    if raised is not None:
        return
    gate.put((perf_counter_ns(), BACKWARD, None, None))
    gate.put((perf_counter_ns(), BACKWARD + 1, None))
    if steps:
        gate.put((perf_counter_ns(), OPTIMIZER, number))
        gate.put((perf_counter_ns(), OPTIMIZER + 1, number))
        if gate.window is not None:
            gate.window(number)
