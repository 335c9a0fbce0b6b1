"""CUDA events and losses with a simulated torch.cuda."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from paceline.inprocess import hooks
from paceline.inprocess.recorder.device import cuda_events, graphs
from paceline.inprocess.recorder.device.cuda_events import CudaEvents, Losses


class Event:
    """Stands in for torch.cuda.Event: it refuses what CUDA refuses."""

    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        Event.made += 1
        self.device = None
        self.at_ms = 0.0

    def record(self, stream: SimpleNamespace) -> None:
        assert self.device is None or self.device.index == stream.index, "an event belongs to one device"
        self.device = SimpleNamespace(index=stream.index)
        self.at_ms = stream.cuda.now_ms
        stream.cuda.recorded += 1

    def query(self) -> bool:
        assert not Cuda.capturing, "a query spoils the capture"
        return True

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


class Cuda:
    """Stands in for torch.cuda."""

    Event = Event
    capturing = False

    class CUDAGraph:
        def capture_begin(self, pool=None):
            if pool == "none":
                raise RuntimeError("no pool")
            Cuda.capturing = True

        def capture_end(self):
            Cuda.capturing = False

        def replay(self):
            """Run what was captured."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.started = True
        self.recorded = 0
        self.stream = 0  # the current one; 0 is the default stream
        self.stream_id = 0

    def is_initialized(self) -> bool:
        return self.started

    def current_device(self) -> int:
        return 1

    def current_stream(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(index=index, cuda=self, cuda_stream=self.stream, stream_id=self.stream_id)


@pytest.fixture
def cuda():
    Cuda.capturing = False
    Event.made = 0
    return Cuda()


@pytest.fixture
def events(cuda):
    return CudaEvents(SimpleNamespace(cuda=cuda))


def test_events_are_on_the_current_device_until_told_otherwise(events):
    assert events.record().device.index == 1
    events.use(0)
    assert events.record().device.index == 0


def test_nothing_is_recorded_before_the_program_uses_cuda(events, cuda):
    cuda.started = False
    assert not events.ready()
    cuda.started = True
    assert events.ready()


def test_the_time_between_two_events(events, cuda):
    first = events.record()
    cuda.now_ms = 1.5
    assert events.elapsed_ns(first, events.record()) == 1_500_000


def test_events_of_two_devices_have_no_time_between_them(events):
    first = events.record()
    events.use(0)
    assert events.elapsed_ns(first, events.record()) is None


def test_what_is_not_computing_is_put_into_the_stream_that_computes(events, cuda):
    cuda.stream = 7
    assert events.record().recorded_on == 7  # a program that computes on a stream of its own
    cuda.stream = 9
    assert events.record(working=False).recorded_on == 7
    assert events.beside() == 9
    cuda.stream = 7
    assert events.beside() is None


def test_events_of_two_streams_have_no_time_between_them(events, cuda):
    first = events.record()
    cuda.stream = 7
    assert events.elapsed_ns(first, events.record()) is None


def test_a_stream_of_another_library_is_not_kept(events, cuda):
    cuda.stream = cuda.stream_id = 0x7F00AA10  # an even number: it is not torch's, and may be gone by the next event
    events.record()
    cuda.stream = cuda.stream_id = 0
    assert events.record(working=False).recorded_on == 0


def test_events_are_used_again_on_their_own_device(events):
    first = events.record()
    events.recycle(first)
    assert events.record() is first
    events.use(0)
    events.recycle(first)  # of the device before
    assert events.record() is not first


@pytest.fixture
def graph(cuda, events):
    yield graphs.patch(SimpleNamespace(cuda=cuda), events, lambda: None) or cuda.CUDAGraph()
    hooks.undo_all()


def test_no_query_while_a_graph_is_captured(events, graph):
    event = events.record()
    graph.capture_begin()
    assert not events.ready()
    assert events.query(event) is False
    graph.capture_end()
    assert events.ready()
    assert events.query(event) is True
    assert events.captured


def test_a_capture_that_does_not_begin(events, graph):
    with pytest.raises(RuntimeError, match="no pool"):
        graph.capture_begin(pool="none")
    assert events.ready()


def losses_of(events) -> Losses:
    return Losses(events, lambda count: torch.empty(count).split(1))


@pytest.fixture
def losses(events):
    return losses_of(events)


def loss_on_device(value: float) -> torch.Tensor:
    tensor = torch.tensor(value, requires_grad=True)
    return tensor * 1.0


class OnDevice:
    """A tensor that says it is on a GPU."""

    def __init__(self, tensor: torch.Tensor, index: int = 0) -> None:
        self._tensor = tensor
        self.device = SimpleNamespace(type="cuda", index=index)

    def detach(self) -> torch.Tensor:
        return self._tensor.detach()


def test_a_loss_is_read_later(losses, events):
    pending = losses.take(OnDevice(loss_on_device(1.25), index=3))
    assert pending.arrived()
    assert pending.value() == 1.25
    assert events.index == 3  # the device that computes the loss is the one to time


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_any_one_element_will_do(losses, shape):
    pending = losses.take(OnDevice(torch.full(shape, 7, dtype=torch.float64)))
    assert pending.arrived() and pending.value() == 7.0


def test_at_most_one_loss_in_ten_milliseconds(losses, monkeypatch):
    """The clock is given, as a busy machine can take longer between two calls."""
    times = iter([20_000_000, 29_000_000, 31_000_000])
    monkeypatch.setattr(cuda_events, "perf_counter_ns", lambda: next(times))
    found = [losses.take(OnDevice(torch.ones(1))) is not None for _ in range(3)]
    assert found == [True, False, True]


def test_a_slot_that_was_used_again_is_lost(losses):
    pending = losses.take(OnDevice(torch.ones(1)))
    losses._count += 256
    assert pending.arrived()
    assert pending.value() is None


def test_a_copy_that_fails_is_the_last(losses):
    broken = SimpleNamespace(device=SimpleNamespace(type="cuda", index=0))
    assert losses.take(broken) is None
    losses._taken_ns = 0
    assert losses.take(OnDevice(torch.ones(1))) is None


def test_no_copy_while_a_graph_is_captured(losses, events):
    events.capture(True)
    assert losses.take(OnDevice(torch.ones(1))) is None
