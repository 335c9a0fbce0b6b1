"""Which operator, which module and which line of the user's launched the work that GPUs did?

Host events of a thread nest, so a launch belongs to the innermost operator that is open on its thread when it begins,
to the innermost module, and to the innermost line that is neither torch's nor Python's own. Modules and lines are known
where the profiler was told to take stacks (``with_stack=True``); backward runs on threads without any.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from paceline.traces.content import NotACapture, content_of
from paceline.traces.kineto import GPU_CATEGORIES

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


class _Args(msgspec.Struct):
    correlation: int | None = None


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


def launchers_in(path: Path) -> Launchers:
    """Return who launched the GPU work of a capture of PyTorch's profiler.

    Raises:
        NotACapture: It is none, or damaged.
    """
    try:
        events = _FILE.decode(content_of(path).data).events
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotACapture(f"{path} is no whole capture of PyTorch's profiler: {error}") from error
    lasted: dict[int, int] = defaultdict(int)
    without = 0
    for event in events:
        if event.cat in GPU_CATEGORIES and event.dur is not None:
            correlation = event.args.correlation if event.args is not None else None
            if correlation is None:
                without += round(event.dur * 1000)
            else:
                lasted[correlation] += round(event.dur * 1000)
    return _added_up(lasted, without, events)


def _added_up(lasted: Mapping[int, int], without: int, events: Sequence[_Event]) -> Launchers:
    """Add the time of GPU events up by what was open when they were launched.

    Args:
        lasted: Nanoseconds of GPU work by correlation.
        without: Nanoseconds of GPU work that has no correlation.
        events: All of the capture.
    """
    left = dict(lasted)
    found: tuple[dict[str, list[int]], ...] = tuple(defaultdict(lambda: [0, 0]) for _ in range(3))
    for correlation, stack in _launched(events):
        time_ns = left.pop(correlation, None)
        if time_ns is None:
            continue
        for table, name in zip(found, (_operator(stack), _module(stack), _line(stack)), strict=True):
            table[name][0] += 1
            table[name][1] += time_ns
    rest = without + sum(left.values())
    if rest:
        for table in found:
            table[UNKNOWN][1] += rest
    operators, modules, lines = (_sorted(table) for table in found)
    return Launchers(total_ns=without + sum(lasted.values()), operators=operators, modules=modules, lines=lines)


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
    return _innermost(stack, lambda event: event.cat == "python_function" and is_the_users(event.name)) or UNKNOWN


@cache
def is_the_users(name: str) -> bool:
    """Say whether a Python function, as captures name it (``train.py(31): step``), is neither torch's nor Python's."""
    found = _LINE.match(name)
    if found is None:
        return False
    parts = Path(found["file"]).with_suffix("").parts
    return not any(part in _NOT_THE_USERS for part in parts) and not any(part.startswith("python3.") for part in parts)
