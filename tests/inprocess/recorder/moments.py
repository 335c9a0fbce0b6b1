"""A training program as moments in milliseconds, and the rows that the automaton makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.steps.state_machine import Automaton, Forward, StepRow
from paceline.record.layout import FLAG_TAIL, SLOTS

MS = 1_000_000
TRAIN, EVALUATE = 0, 1  # loader numbers
ADAM, CRITIC, GENERATOR = 11, 12, 13  # optimizer ids
MODEL, TEACHER, GAN_G, GAN_D = 21, 22, 23, 24  # module ids


class Program:
    """Plays a program to an automaton; every call takes so many milliseconds."""

    def __init__(self, optimizers: int = 1) -> None:
        self.now = 5_000 * MS
        self.begun = self.now
        self.out: list[StepRow] = []
        self.automaton = Automaton(self.out.append)
        for _ in range(optimizers):
            self.note(g.MADE_OPTIMIZER)

    def note(self, code: int, *details: object) -> None:
        self.automaton.feed((self.now, code, *details))

    def idle(self, ms: float) -> None:
        self.now += round(ms * MS)

    @contextmanager
    def phase(self, code: int, begin: tuple[object, ...] = (), end: tuple[object, ...] = ()) -> Iterator[None]:
        self.note(code, *begin)
        try:
            yield
        finally:
            self.note(code + 1, *end)

    def spend(self, ms: float, code: int, begin: tuple[object, ...] = (), end: tuple[object, ...] = ()) -> None:
        with self.phase(code, begin, end):
            self.idle(ms)

    def iter(self, ms: float) -> None:
        self.spend(ms, g.ITER)

    def fetch(self, ms: float, loader: int = TRAIN, samples: float | None = 8.0, cpu_ms: float | None = None) -> None:
        cpu = None if cpu_ms is None else round(cpu_ms * MS)
        self.spend(ms, g.FETCH, end=(loader, samples, cpu))

    def exhaust(self, ms: float) -> None:
        """The loader says StopIteration."""
        self.spend(ms, g.FETCH, end=(-1, None, None))

    def forward(self, ms: float, module: int = MODEL, *, cpu_ms: float | None = None, **changes: object) -> None:
        with self.forwarding(module, cpu_ms=cpu_ms, **changes):
            self.idle(ms)

    @contextmanager
    def forwarding(self, module: int = MODEL, *, cpu_ms: float | None = None, **changes: object) -> Iterator[None]:
        values = {"graded": True, "training": True, "module": module, "samples": 8.0, "fresh": True, "synced": False}
        cpu = None if cpu_ms is None else round(cpu_ms * MS)
        with self.phase(g.FORWARD, (Forward(**(values | changes)),), (cpu,)):
            yield

    def ungraded(self, ms: float, module: int = MODEL, *, training: bool = False) -> None:
        self.forward(ms, module, graded=False, training=training)

    def backward(self, ms: float, loss: float | None = None, cpu_ms: float | None = None) -> None:
        with self.backwarding(loss, cpu_ms):
            self.idle(ms)

    @contextmanager
    def backwarding(self, loss: float | None = None, cpu_ms: float | None = None) -> Iterator[None]:
        cpu = None if cpu_ms is None else round(cpu_ms * MS)
        with self.phase(g.BACKWARD, (loss, None), (cpu,)):
            yield

    def step(self, ms: float, optimizer: int = ADAM) -> None:
        self.spend(ms, g.OPTIMIZER, (optimizer,), (optimizer,))

    @contextmanager
    def stepping(self, optimizer: int = ADAM) -> Iterator[None]:
        with self.phase(g.OPTIMIZER, (optimizer,), (optimizer,)):
            yield

    def train_on(self, fetch_ms: float = 2) -> None:
        """One plain step."""
        self.fetch(fetch_ms)
        self.forward(3)
        self.backward(4)
        self.step(1)

    def end(self) -> list[StepRow]:
        """Finish, check what must hold of every program, and return the rows of steps."""
        self.automaton.finish(self.now)
        check_tiling(self.out, self.automaton.first_ns, self.now)
        return [row for row in self.out if not row.flags & FLAG_TAIL]

    @property
    def tail(self) -> StepRow:
        return self.out[-1]


def check_tiling(rows: list[StepRow], first_ns: int | None, now_ns: int) -> None:
    """Rows follow each other without a hole from the first moment to the end, and each one's slots fill it."""
    begun = first_ns
    for row in rows:
        assert row.end_ns - row.wall_ns == begun
        assert sum(row.slots_ns) == row.wall_ns
        assert min(row.slots_ns) >= 0
        begun = row.end_ns
    assert begun == (now_ns if rows else first_ns)
    assert [bool(row.flags & FLAG_TAIL) for row in rows] == [False] * (len(rows) - 1) + [True] * bool(rows)


def ms(row: StepRow) -> dict[str, float]:
    """What a row's slots hold, in milliseconds, without empty ones."""
    return {name: spent / MS for name, spent in zip(SLOTS, row.slots_ns) if spent}
