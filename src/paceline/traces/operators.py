"""Which operator, which module and which line of the user's had the work done that GPUs did? Without any, the CPU's?

A launch belongs to what is open on its thread when it begins (`open_events`). Modules and lines are known where the
profiler was told to take stacks (``with_stack=True``). Products of matrices are told with the work that they are, where
shapes were recorded (``record_shapes=True``). In captures without GPU work, an operator has the CPU's time in it less
that in the operators within.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.traces.flops import Call, has_formula, work_of
from paceline.traces.kineto import GPU_CATEGORIES
from paceline.traces.matrix import on_tensor_cores
from paceline.traces.open_events import (
    OPERATORS,
    UNKNOWN,
    Args,
    Event,
    Open,
    begun,
    events_of,
    forward_of,
    is_launch,
    opened,
)
from paceline.traces.products import Product, Products


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """An operator, a module or a line, with the GPU work that it launched itself; nanoseconds."""

    name: str
    launches: int  # without GPU work: calls of operators
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class Launchers:
    """GPU time of a capture by who launched it, what takes most first; each of the three adds up to `total_ns`."""

    total_ns: int
    operators: Sequence[Launcher]
    modules: Sequence[Launcher]
    lines: Sequence[Launcher]
    products: Sequence[Product] = ()  # of the operators whose shapes are told, what takes most first
    on_cpu: bool = False  # the capture has no GPU work: times are the CPU's, in operators


@dataclass(frozen=True, kw_only=True)
class _Gpu:
    """GPU work of one correlation."""

    total_ns: int
    on_tensor_cores: bool


@dataclass(kw_only=True)
class _Tally:
    """Adds time up by operator, module and line."""

    operators: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    modules: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    lines: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, into: Open, time_ns: int, launches: int = 1) -> None:
        """Add some time."""
        for table, name in ((self.operators, into.operator), (self.modules, into.module), (self.lines, into.line)):
            table[name][0] += launches
            table[name][1] += time_ns

    def found(self, products: Products, *, on_cpu: bool) -> Launchers:
        """Return what was added."""
        operators, modules, lines = map(_sorted, (self.operators, self.modules, self.lines))
        return Launchers(
            total_ns=sum(one.total_ns for one in operators),
            operators=operators,
            modules=modules,
            lines=lines,
            products=products.found(),
            on_cpu=on_cpu,
        )


_NOWHERE = Open(operator=UNKNOWN, module=UNKNOWN, line=UNKNOWN)


def launchers_in(path: Path) -> Launchers:
    """Return who launched the GPU work of a capture of PyTorch's profiler; without any, what the CPU worked on.

    Raises:
        NotACapture: It is none, or damaged.
    """
    events = events_of(path)
    lasted: dict[int, _Gpu] = {}
    without, any_work = 0, False
    for event in events:
        if event.cat in GPU_CATEGORIES and event.dur is not None:
            any_work = True
            correlation = event.args.correlation if event.args is not None else None
            time_ns = round(event.dur * 1000)
            if correlation is None:
                without += time_ns
                continue
            before = lasted.get(correlation, _Gpu(total_ns=0, on_tensor_cores=False))
            tensor = before.on_tensor_cores or on_tensor_cores(event.name) is True
            lasted[correlation] = _Gpu(total_ns=before.total_ns + time_ns, on_tensor_cores=tensor)
    return _on_gpu(lasted, without, events) if any_work else _on_cpu(events)


def _on_gpu(lasted: Mapping[int, _Gpu], without: int, events: Sequence[Event]) -> Launchers:
    """Add the time of GPU events up by what was open when they were launched.

    Args:
        lasted: GPU work by correlation.
        without: Nanoseconds of GPU work that has no correlation.
        events: All of the capture.
    """
    left, tally, products, forward = dict(lasted), _Tally(), Products(_outer(events)), forward_of(events)
    for event, stack in begun(events):
        correlation = event.args.correlation if event.args is not None and is_launch(event) else None
        work = left.pop(correlation, None) if correlation is not None else None
        if work is not None:
            tally.add(forward.of(opened(stack)), work.total_ns)
            _into(products, reversed(stack), work)
    rest = without + sum(work.total_ns for work in left.values())
    if rest:
        tally.add(_NOWHERE, rest, launches=0)
    return tally.found(products, on_cpu=False)


def _outer(events: Sequence[Event]) -> set[int]:
    """Return operators within which another one is the product: what else they do, such as adding a bias, is none."""
    outer: set[int] = set()
    for event, stack in begun(events):
        around = [id(one) for one in stack if one.cat in OPERATORS and has_formula(one.name)]
        if around and event.cat in OPERATORS and work_of(_called(event)) is not None:
            outer.update(around)
    return outer


def _into(products: Products, around: Iterable[Event], work: _Gpu) -> None:
    """Add work to the innermost product that it is part of."""
    for event in around:
        if event.cat in OPERATORS and products.take(id(event), _called(event), work.total_ns, work.on_tensor_cores):
            break


@dataclass(kw_only=True)
class _Computed:
    """An operator that ran on the CPU."""

    event: Event
    into: Open
    around: _Computed | None
    self_ns: int


def _on_cpu(events: Sequence[Event]) -> Launchers:
    """Add the CPU's time in operators up, each less what the operators within took."""
    computed: dict[int, _Computed] = {}
    for event, stack in begun(events):
        if event.cat not in OPERATORS:
            continue
        outer = next((computed[id(one)] for one in reversed(stack) if id(one) in computed), None)
        time_ns = round((event.dur or 0.0) * 1000)
        computed[id(event)] = _Computed(event=event, into=opened([*stack, event]), around=outer, self_ns=time_ns)
        if outer is not None:
            outer.self_ns -= time_ns
    tally, products, forward = _Tally(), Products(_outer(events)), forward_of(events)
    for one in computed.values():
        time_ns = max(0, one.self_ns)
        tally.add(forward.of(one.into), time_ns)
        _into(products, _outwards(one), _Gpu(total_ns=time_ns, on_tensor_cores=False))
    return tally.found(products, on_cpu=True)


def _outwards(one: _Computed | None) -> Iterable[Event]:
    while one is not None:
        yield one.event
        one = one.around


def _called(event: Event) -> Call:
    args = event.args or Args()
    dims, types, values = (value if isinstance(value, list) else [] for value in (args.dims, args.types, args.values))
    return Call(name=event.name, dims=dims, types=types, values=values)


def _sorted(table: Mapping[str, Sequence[int]]) -> list[Launcher]:
    made = [Launcher(name=name, launches=count, total_ns=total) for name, (count, total) in table.items()]
    return sorted(made, key=lambda one: (-one.total_ns, one.name))
