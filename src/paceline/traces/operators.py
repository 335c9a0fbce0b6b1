"""Which operator, which module and which line of the user's launched the work that GPUs did?

Host events of a thread nest, so a launch belongs to the innermost operator that is open on its thread when it begins,
to the innermost module, and to the innermost line that is neither torch's nor Python's own. Modules and lines are known
where the profiler was told to take stacks (``with_stack=True``); backward runs on threads without any. Products of
matrices are told with the work that they are, where shapes were recorded (``record_shapes=True``).
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from paceline.traces.content import NotACapture, content_of
from paceline.traces.flops import Call
from paceline.traces.kineto import GPU_CATEGORIES
from paceline.traces.matrix import on_tensor_cores
from paceline.traces.products import Product, Products

_OPERATORS = frozenset({"cpu_op", "Operator"})
_MODULE = "nn.Module: "
_LINE = re.compile(r"^(?P<file>[^<>]+\.py)\(\d+\): ")
_NOT_THE_USERS = {"torch", "numpy", "importlib", "site-packages", "dist-packages"} | sys.stdlib_module_names
UNKNOWN = "not known"


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """An operator, a module or a line, with the GPU work that it launched itself; nanoseconds."""

    name: str
    launches: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class Launchers:
    """GPU time of a capture by who launched it, what takes most first; each of the three adds up to `total_ns`."""

    total_ns: int
    operators: Sequence[Launcher]
    modules: Sequence[Launcher]
    lines: Sequence[Launcher]
    products: Sequence[Product] = ()  # of the operators whose shapes are told, what takes most first


class _Args(msgspec.Struct):
    correlation: int | None = None
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    values: Any = msgspec.field(name="Concrete Inputs", default=None)
    stack: Any = msgspec.field(name="Call stack", default=None)  # of profilers before PyTorch 1.12, innermost first


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float | None = None
    tid: int | str = 0
    args: _Args | None = None


class _File(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents", default_factory=list)


_FILE = msgspec.json.Decoder(_File)


@dataclass(frozen=True, kw_only=True)
class _Gpu:
    """GPU work of one correlation."""

    total_ns: int
    on_tensor_cores: bool


def launchers_in(path: Path) -> Launchers:
    """Return who launched the GPU work of a capture of PyTorch's profiler.

    Raises:
        NotACapture: It is none, or damaged.
    """
    try:
        events = _FILE.decode(content_of(path).document).events
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotACapture(f"{path} is no whole capture of PyTorch's profiler: {error}") from error
    lasted: dict[int, _Gpu] = {}
    without = 0
    for event in events:
        if event.cat in GPU_CATEGORIES and event.dur is not None:
            correlation = event.args.correlation if event.args is not None else None
            time_ns = round(event.dur * 1000)
            if correlation is None:
                without += time_ns
                continue
            before = lasted.get(correlation, _Gpu(total_ns=0, on_tensor_cores=False))
            tensor = before.on_tensor_cores or on_tensor_cores(event.name) is True
            lasted[correlation] = _Gpu(total_ns=before.total_ns + time_ns, on_tensor_cores=tensor)
    return _added_up(lasted, without, events)


def _added_up(lasted: Mapping[int, _Gpu], without: int, events: Sequence[_Event]) -> Launchers:
    """Add the time of GPU events up by what was open when they were launched.

    Args:
        lasted: GPU work by correlation.
        without: Nanoseconds of GPU work that has no correlation.
        events: All of the capture.
    """
    left = dict(lasted)
    found: tuple[dict[str, list[int]], ...] = tuple(defaultdict(lambda: [0, 0]) for _ in range(3))
    products = Products()
    for correlation, stack in _launched(events):
        work = left.pop(correlation, None)
        if work is None:
            continue
        for table, name in zip(found, (_operator(stack), _module(stack), _line(stack)), strict=True):
            table[name][0] += 1
            table[name][1] += work.total_ns
        for event in reversed(stack):
            if event.cat in _OPERATORS and products.take(
                id(event), _called(event), work.total_ns, work.on_tensor_cores
            ):
                break
    rest = without + sum(work.total_ns for work in left.values())
    if rest:
        for table in found:
            table[UNKNOWN][1] += rest
    operators, modules, lines = (_sorted(table) for table in found)
    total = without + sum(work.total_ns for work in lasted.values())
    return Launchers(total_ns=total, operators=operators, modules=modules, lines=lines, products=products.found())


def _called(event: _Event) -> Call:
    args = event.args or _Args()
    dims, types, values = (value if isinstance(value, list) else [] for value in (args.dims, args.types, args.values))
    return Call(name=event.name, dims=dims, types=types, values=values)


def _sorted(table: Mapping[str, Sequence[int]]) -> list[Launcher]:
    made = [Launcher(name=name, launches=count, total_ns=total) for name, (count, total) in table.items()]
    return sorted(made, key=lambda one: (-one.total_ns, one.name))


def _launched(events: Sequence[_Event]) -> Iterator[tuple[int, list[_Event]]]:
    """Yield each launch's correlation with what is open around it on its thread, the outermost first."""
    threads: dict[int | str, list[_Event]] = defaultdict(list)
    for event in events:
        if event.dur is not None and event.cat not in GPU_CATEGORIES and _counts(event):
            threads[event.tid].append(event)
    for own in threads.values():
        own.sort(key=lambda event: (event.ts, -(event.dur or 0.0)))
        stack: list[_Event] = []
        for event in own:
            while stack and stack[-1].ts + (stack[-1].dur or 0.0) <= event.ts:
                stack.pop()
            if event.args is not None and event.args.correlation is not None and event.cat not in _OPERATORS:
                yield event.args.correlation, stack
            else:
                stack.append(event)


def _counts(event: _Event) -> bool:
    launches = event.args is not None and event.args.correlation is not None
    return launches or event.cat in _OPERATORS or event.cat == "python_function"


def _innermost(stack: Sequence[_Event], chosen: Callable[[_Event], bool]) -> str | None:
    return next((event.name for event in reversed(stack) if chosen(event)), None)


def _operator(stack: Sequence[_Event]) -> str:
    return _innermost(stack, lambda event: event.cat in _OPERATORS) or UNKNOWN


def _module(stack: Sequence[_Event]) -> str:
    name = _innermost(stack, lambda event: event.name.startswith(_MODULE))
    return name.removeprefix(_MODULE) if name is not None else UNKNOWN


def _line(stack: Sequence[_Event]) -> str:
    called = next((e.args.stack for e in reversed(stack) if e.args is not None and e.args.stack), None)
    if isinstance(called, str):
        return next((line for line in called.split(";") if is_the_users(line)), UNKNOWN)
    return _innermost(stack, lambda event: event.cat == "python_function" and is_the_users(event.name)) or UNKNOWN


@cache
def is_the_users(name: str) -> bool:
    """Say whether a Python function, as captures name it (``train.py(31): step``), is neither torch's nor Python's."""
    found = _LINE.match(name)
    if found is None:
        return False
    parts = Path(found["file"]).with_suffix("").parts
    return not any(part in _NOT_THE_USERS for part in parts) and not any(part.startswith("python3.") for part in parts)
