"""GPU time by the operator, the module and the source line that launched it; without GPU work, CPU time.

Host events of a thread nest, so a launch is counted for the innermost operator around it on its thread, for
the innermost module, and for the innermost line of the user's code (not torch's, not Python's). Autograd runs the
backward pass on its own thread without modules and lines; there, the module and the line of the forward operator with
the same sequence number are used. If several operators have this number, the one that began last created the autograd
node.

Modules and lines need stacks (``with_stack=True``), the work of matrix products needs shapes (``record_shapes=True``).
In a capture without GPU work, the time of an operator is its CPU time minus the CPU time of the operators inside it.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from paceline.traces.analyze.matrix_products import (
    MatrixProduct,
    MatrixProducts,
    OperatorCall,
    has_formula,
    on_tensor_cores,
    work_of,
)
from paceline.traces.read.content import NotACapture, read_content
from paceline.traces.read.kineto import GPU_CATEGORIES

OPERATORS = frozenset({"cpu_op", "Operator"})
UNKNOWN = "not known"
_MODULE = "nn.Module: "
_LINE = re.compile(r"^(?P<file>[^<>]+\.py)\(\d+\): ")
_NOT_THE_USERS = {"torch", "numpy", "importlib", "site-packages", "dist-packages"} | sys.stdlib_module_names


class HostArgs(msgspec.Struct):
    """Those arguments of launches and operators in a capture that are used here."""

    correlation: int | None = None
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    values: Any = msgspec.field(name="Concrete Inputs", default=None)
    stack: Any = msgspec.field(
        name="Call stack", default=None
    )  # written by profilers before PyTorch 1.12, innermost first
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(
        name="Fwd thread id", default=None
    )  # 0: the operator is part of the forward pass


class HostEvent(msgspec.Struct):
    """An event of a capture; times in microseconds."""

    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float | None = None
    tid: int | str = 0
    args: HostArgs | None = None


class _File(msgspec.Struct):
    events: list[HostEvent] = msgspec.field(name="traceEvents", default_factory=list)


_DECODER = msgspec.json.Decoder(_File)


@dataclass(frozen=True, kw_only=True)
class CallSite:
    """The innermost operator, module and source line in which an event began."""

    operator: str
    module: str
    line: str
    backward_of: int | None = None  # sequence number of its forward operator


@dataclass(frozen=True, kw_only=True)
class ForwardCallSites:
    """Call sites of forward operators, by the autograd sequence number of the operator."""

    made: Mapping[int, CallSite]  # by sequence number

    def of(self, found: CallSite) -> CallSite:
        """Return a call site whose unknown module and line are replaced by those of the forward operator."""
        made = self.made.get(found.backward_of) if found.backward_of is not None else None
        if made is None:
            return found
        module = made.module if found.module == UNKNOWN else found.module
        return replace(found, module=module, line=made.line if found.line == UNKNOWN else found.line)


def events_of(path: Path) -> list[HostEvent]:
    """Return all events of a capture.

    Raises:
        NotACapture: The file is not a capture, or is damaged.
    """
    try:
        return _DECODER.decode(read_content(path).document).events
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotACapture(f"{path} is not a complete capture of PyTorch's profiler: {error}") from error


def host_events(events: Sequence[HostEvent]) -> Iterator[tuple[HostEvent, list[HostEvent]]]:
    """Yield each launch, operator and Python function together with its enclosing events, outermost first."""
    threads: dict[int | str, list[HostEvent]] = defaultdict(list)
    for event in events:
        if event.dur is None or event.cat in GPU_CATEGORIES:
            continue
        if is_launch(event) or event.cat in OPERATORS or event.cat == "python_function":
            threads[event.tid].append(event)
    for own in threads.values():
        own.sort(key=lambda event: (event.ts, -(event.dur or 0.0)))
        stack: list[HostEvent] = []
        for event in own:
            while stack and stack[-1].ts + (stack[-1].dur or 0.0) <= event.ts:
                stack.pop()
            yield event, stack
            if not is_launch(event):
                stack.append(event)


def is_launch(event: HostEvent) -> bool:
    """Return whether an event is a call of the GPU runtime that launched work."""
    return event.args is not None and event.args.correlation is not None and event.cat not in OPERATORS


def call_site_of(stack: Sequence[HostEvent]) -> CallSite:
    """Return the innermost operator, module and source line of a stack of enclosing events."""
    return CallSite(
        operator=_innermost(stack, lambda event: event.cat in OPERATORS) or UNKNOWN,
        module=_module(stack),
        line=_line(stack),
        backward_of=_backward_of(stack),
    )


def forward_call_sites(events: Sequence[HostEvent]) -> ForwardCallSites:
    """Return the call sites of forward operators; empty if the capture has no modules or lines."""
    if not any(event.cat == "python_function" or (event.args and event.args.stack) for event in events):
        return ForwardCallSites(made={})
    made: dict[int, tuple[float, CallSite]] = {}
    for event, stack in host_events(events):
        number = _sequence(event)
        if number is None or not _is_forward(event) or made.get(number, (event.ts,))[0] > event.ts:
            continue
        made[number] = event.ts, call_site_of([*stack, event])
    return ForwardCallSites(made={number: found for number, (_, found) in made.items()})


def _sequence(event: HostEvent) -> int | None:
    number = event.args.sequence if event.args is not None and event.cat in OPERATORS else None
    return number if isinstance(number, int) and number >= 0 else None


def _is_forward(event: HostEvent) -> bool:
    return event.args is not None and event.args.forward_thread in (None, 0)


def _backward_of(stack: Sequence[HostEvent]) -> int | None:
    numbers = (_sequence(event) for event in reversed(stack) if not _is_forward(event))
    return next((number for number in numbers if number is not None), None)


def _innermost(stack: Sequence[HostEvent], chosen: Callable[[HostEvent], bool]) -> str | None:
    return next((event.name for event in reversed(stack) if chosen(event)), None)


def _module(stack: Sequence[HostEvent]) -> str:
    name = _innermost(stack, lambda event: event.name.startswith(_MODULE))
    return name.removeprefix(_MODULE) if name is not None else UNKNOWN


def _line(stack: Sequence[HostEvent]) -> str:
    called = next((e.args.stack for e in reversed(stack) if e.args is not None and e.args.stack), None)
    if isinstance(called, str):
        return next((line for line in called.split(";") if is_the_users(line)), UNKNOWN)
    return _innermost(stack, lambda event: event.cat == "python_function" and is_the_users(event.name)) or UNKNOWN


@cache
def is_the_users(name: str) -> bool:
    """Return whether a function, such as ``train.py(31): step``, is in user code, not in torch's or Python's."""
    found = _LINE.match(name)
    if found is None:
        return False
    parts = Path(found["file"]).with_suffix("").parts
    return not any(part in _NOT_THE_USERS for part in parts) and not any(part.startswith("python3.") for part in parts)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """An operator, module or source line, with the GPU time of the work that it launched directly."""

    name: str
    launches: int  # number of launches; without GPU work, calls of operators
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class Launchers:
    """The GPU time of a capture by operator, by module and by source line, each in descending order.

    Each of the three lists sums to `total_ns`.
    """

    total_ns: int
    operators: Sequence[Launcher]
    modules: Sequence[Launcher]
    lines: Sequence[Launcher]
    products: Sequence[MatrixProduct] = ()  # operators with known shapes, by descending time
    on_cpu: bool = False  # whether times are CPU time, because the capture has no GPU work


@dataclass(frozen=True, kw_only=True)
class _GpuWork:
    """The GPU work that one launch caused. A launch and its GPU work have the same correlation id."""

    total_ns: int
    on_tensor_cores: bool


@dataclass(kw_only=True)
class _TimeByCallSite:
    """Adds up time in nanoseconds by operator, by module and by source line."""

    operators: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    modules: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    lines: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, into: CallSite, time_ns: int, launches: int = 1) -> None:
        """Add time and launches to the operator, the module and the line of a call site."""
        for table, name in ((self.operators, into.operator), (self.modules, into.module), (self.lines, into.line)):
            table[name][0] += launches
            table[name][1] += time_ns

    def found(self, products: MatrixProducts, *, on_cpu: bool) -> Launchers:
        """Return the time by operator, by module and by line, each in descending order."""
        operators, modules, lines = map(_sorted, (self.operators, self.modules, self.lines))
        return Launchers(
            total_ns=sum(one.total_ns for one in operators),
            operators=operators,
            modules=modules,
            lines=lines,
            products=products.found(),
            on_cpu=on_cpu,
        )


_NOWHERE = CallSite(operator=UNKNOWN, module=UNKNOWN, line=UNKNOWN)


def launchers_in(path: Path) -> Launchers:
    """Return the GPU time of a capture by operator, module and source line; without GPU work, the CPU time.

    Raises:
        NotACapture: The file is not a capture, or is damaged.
    """
    events = events_of(path)
    lasted: dict[int, _GpuWork] = {}
    without, any_work = 0, False
    for event in events:
        if event.cat in GPU_CATEGORIES and event.dur is not None:
            any_work = True
            correlation = event.args.correlation if event.args is not None else None
            time_ns = round(event.dur * 1000)
            if correlation is None:
                without += time_ns
                continue
            before = lasted.get(correlation, _GpuWork(total_ns=0, on_tensor_cores=False))
            tensor = before.on_tensor_cores or on_tensor_cores(event.name) is True
            lasted[correlation] = _GpuWork(total_ns=before.total_ns + time_ns, on_tensor_cores=tensor)
    return _on_gpu(lasted, without, events) if any_work else _on_cpu(events)


def _on_gpu(lasted: Mapping[int, _GpuWork], without: int, events: Sequence[HostEvent]) -> Launchers:
    """Return the GPU time by the call sites of the launches.

    Args:
        lasted: GPU work by correlation id.
        without: Nanoseconds of GPU work without a correlation id.
        events: All events of the capture.
    """
    left, tally, products, forward = (
        dict(lasted),
        _TimeByCallSite(),
        MatrixProducts(_outer(events)),
        forward_call_sites(events),
    )
    for event, stack in host_events(events):
        correlation = event.args.correlation if event.args is not None and is_launch(event) else None
        work = left.pop(correlation, None) if correlation is not None else None
        if work is not None:
            tally.add(forward.of(call_site_of(stack)), work.total_ns)
            _into(products, reversed(stack), work)
    rest = without + sum(work.total_ns for work in left.values())
    if rest:
        tally.add(_NOWHERE, rest, launches=0)
    return tally.found(products, on_cpu=False)


def _outer(events: Sequence[HostEvent]) -> set[int]:
    """Return the ids of those matrix product operators that contain another one.

    The work that such an operator launches itself, such as adding a bias, is no matrix product.
    """
    outer: set[int] = set()
    for event, stack in host_events(events):
        around = [id(one) for one in stack if one.cat in OPERATORS and has_formula(one.name)]
        if around and event.cat in OPERATORS and work_of(_called(event)) is not None:
            outer.update(around)
    return outer


def _into(products: MatrixProducts, around: Iterable[HostEvent], work: _GpuWork) -> None:
    """Add GPU work to the innermost matrix product among the events around its launch."""
    for event in around:
        if event.cat in OPERATORS and products.take(id(event), _called(event), work.total_ns, work.on_tensor_cores):
            break


@dataclass(kw_only=True)
class _CpuOperator:
    """An operator that ran on the CPU."""

    event: HostEvent
    into: CallSite
    around: _CpuOperator | None
    self_ns: int


def _on_cpu(events: Sequence[HostEvent]) -> Launchers:
    """Return the CPU time of operators, each without the CPU time of the operators inside it."""
    computed: dict[int, _CpuOperator] = {}
    for event, stack in host_events(events):
        if event.cat not in OPERATORS:
            continue
        outer = next((computed[id(one)] for one in reversed(stack) if id(one) in computed), None)
        time_ns = round((event.dur or 0.0) * 1000)
        computed[id(event)] = _CpuOperator(
            event=event, into=call_site_of([*stack, event]), around=outer, self_ns=time_ns
        )
        if outer is not None:
            outer.self_ns -= time_ns
    tally, products, forward = _TimeByCallSite(), MatrixProducts(_outer(events)), forward_call_sites(events)
    for one in computed.values():
        time_ns = max(0, one.self_ns)
        tally.add(forward.of(one.into), time_ns)
        _into(products, _outwards(one), _GpuWork(total_ns=time_ns, on_tensor_cores=False))
    return tally.found(products, on_cpu=True)


def _outwards(one: _CpuOperator | None) -> Iterable[HostEvent]:
    while one is not None:
        yield one.event
        one = one.around


def _called(event: HostEvent) -> OperatorCall:
    args = event.args or HostArgs()
    dims, types, values = (value if isinstance(value, list) else [] for value in (args.dims, args.types, args.values))
    return OperatorCall(name=event.name, dims=dims, types=types, values=values)


def _sorted(table: Mapping[str, Sequence[int]]) -> list[Launcher]:
    made = [Launcher(name=name, launches=count, total_ns=total) for name, (count, total) in table.items()]
    return sorted(made, key=lambda one: (-one.total_ns, one.name))
