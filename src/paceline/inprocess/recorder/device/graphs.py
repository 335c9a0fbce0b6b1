"""Patches of `torch.cuda.CUDAGraph`: pause event queries during a capture, and record replays of training steps.

The hooks of forward passes, backward passes and optimizers run during the capture of a graph, but not during a replay.
The number of their calls during the capture shows what the graph contains. If the graph contains a backward pass, a
replay is recorded as a forward pass with the time of the whole graph, followed by an empty backward pass. If the graph
also contains an optimizer step, the replay ends a step.
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
    """Patch `capture_begin`, `capture_end` and `replay`.

    Args:
        torch: The module.
        events: The timing events, which must not be queried during a capture.
        before: Called just before each capture.
    """
    graph, contents = torch.cuda.CUDAGraph, IdentityMap[_Content]()
    begin, begun, ended = _capturing(events, before, contents)
    hooks.replace(graph, "capture_begin", stand_in(graph.capture_begin, "graph probe", begin, begun))
    hooks.replace(graph, "capture_end", stand_in(graph.capture_end, "graph probe", lambda args, kwargs: args[0], ended))
    hooks.replace(graph, "replay", stand_in(graph.replay, "graph probe", _replaying(contents), _replayed))


def _capturing(
    events: CudaEvents, before: Callable[[], None], contents: IdentityMap[_Content]
) -> tuple[Callable[..., Any], Callable[..., None], Callable[..., None]]:
    """Return the functions to call before ``capture_begin``, after ``capture_begin``, and after ``capture_end``."""
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
    """Return the numbers of recorded backward passes and optimizer steps so far."""
    return gate.backwards, gate.optimizer_steps


def _replaying(contents: IdentityMap[_Content]) -> Callable[[Any, Any], tuple[int, int] | None]:
    """Return the function to call before ``replay``. Replays inside a forward or backward pass are not recorded."""

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
