"""A device that is played: a queue that it works through behind the host, events in it, and a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.device.clock import DeviceClock, Stamper
from paceline.inprocess.recorder.steps.state_machine import Automaton, Forward, StepRow
from paceline.record.layout import FLAG_TAIL, SLOTS

MS = 1_000_000


class PlayedDevice:
    """Stands in for CUDA's events. `host_ns` is the host's clock; the device's runs from another zero."""

    def __init__(self) -> None:
        self.host_ns = 5_000 * MS
        self.free_ns = 0  # when the device will have done all that is queued
        self.refuses: Exception | None = None
        self.capturing = False
        self.devices_seen: list[int] = []
        self.recorded = 0
        self.recycled = 0

    def queue(self, ms: float) -> None:
        self.free_ns = max(self.free_ns, self.host_ns) + round(ms * MS)

    def idle(self, ms: float) -> None:
        """The host is busy with something else."""
        self.host_ns += round(ms * MS)

    def wait(self) -> None:
        """The host waits for the device, as ``.item()`` does."""
        self.host_ns = max(self.host_ns, self.free_ns)

    def ready(self) -> bool:
        return not self.capturing

    def use(self, index: int) -> None:
        self.devices_seen.append(index)

    def record(self, *, working: bool = True) -> tuple[int]:
        if self.refuses:
            raise self.refuses
        self.recorded += 1
        return (max(self.free_ns, self.host_ns) - 4_321 * MS,)

    def query(self, event: tuple[int]) -> bool:
        return event[0] + 4_321 * MS <= self.host_ns

    def elapsed_ns(self, earlier: tuple[int], later: tuple[int]) -> int | None:
        assert self.query(later), "asked for the time of an event that the device has not passed"
        return later[0] - earlier[0]

    def recycle(self, event: tuple[int]) -> None:
        self.recycled += 1


class Training:
    """A program on a played device; the host's automaton and the device's get the same moments."""

    def __init__(self, period: int = 1) -> None:
        self.device = PlayedDevice()
        self.moments: list[g.Moment] = []
        self.stamper = Stamper(self.device, self.moments.append)
        self.stamper.period = period
        self.clock = DeviceClock(self.device, self.stamper)
        self.host_rows: list[StepRow] = []
        self.automaton = Automaton(self.host_rows.append)
        self.note(g.MADE_OPTIMIZER)

    def note(self, code: int, *details: object) -> None:
        self.stamper.put((self.device.host_ns, code, *details))

    @contextmanager
    def phase(self, code: int, begin: tuple[object, ...] = (), end: tuple[object, ...] = ()) -> Iterator[None]:
        self.note(code, *begin)
        yield
        self.note(code + 1, *end)

    def run(self, code: int, host_ms: float, device_ms: float, begin=(), end=()) -> None:
        with self.phase(code, begin, end):
            self.device.queue(device_ms)
            self.device.idle(host_ms)

    def fetch(self, ms: float) -> None:
        self.run(g.FETCH, ms, 0, end=(0, 8.0, None))

    def forward(self, host_ms: float, device_ms: float) -> None:
        forward = Forward(graded=True, training=True, module=1, samples=8.0, fresh=True, synced=False)
        self.run(g.FORWARD, host_ms, device_ms, (forward,), (None,))

    def backward(self, host_ms: float, device_ms: float) -> None:
        self.run(g.BACKWARD, host_ms, device_ms, (None, None), (None,))

    def optimize(self, host_ms: float, device_ms: float, optimizer: int = 7) -> None:
        self.run(g.OPTIMIZER, host_ms, device_ms, (optimizer,), (optimizer,))

    def drain(self) -> None:
        """What the recorder does at every turn."""
        for moment in self.moments:
            self.automaton.feed(moment)
            self.clock.take(moment)
        self.moments.clear()
        self.clock.poll()

    def finish(self) -> None:
        self.device.wait()
        self.drain()
        self.automaton.finish(self.device.host_ns)

    @property
    def rows(self) -> list[StepRow]:
        return [row for row in self.host_rows if not row.flags & FLAG_TAIL]


def ms(slots: tuple[int, ...]) -> dict[str, float]:
    """What slots hold, in milliseconds, without empty ones."""
    return {name: spent / MS for name, spent in zip(SLOTS, slots) if spent}
