"""What was open on the host when something began? Operators, modules and lines, thread by thread.

Host events of a thread nest, so what begins belongs to the innermost operator that is open on its thread, to the
innermost module, and to the innermost line that is neither torch's nor Python's own. Autograd runs backward on a thread
of its own without modules and lines: there the operator of the forward pass stands for it whose sequence number it has.
Of several that have one number, the last to begin made the node.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from paceline.traces.content import NotACapture, content_of
from paceline.traces.kineto import GPU_CATEGORIES

OPERATORS = frozenset({"cpu_op", "Operator"})
UNKNOWN = "not known"
_MODULE = "nn.Module: "
_LINE = re.compile(r"^(?P<file>[^<>]+\.py)\(\d+\): ")
_NOT_THE_USERS = {"torch", "numpy", "importlib", "site-packages", "dist-packages"} | sys.stdlib_module_names


class Args(msgspec.Struct):
    """What the profiler tells of launches and operators."""

    correlation: int | None = None
    dims: Any = msgspec.field(name="Input Dims", default=None)
    types: Any = msgspec.field(name="Input type", default=None)
    values: Any = msgspec.field(name="Concrete Inputs", default=None)
    stack: Any = msgspec.field(name="Call stack", default=None)  # of profilers before PyTorch 1.12, innermost first
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)  # 0: it is of the forward pass


class Event(msgspec.Struct):
    """An event; microseconds."""

    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float | None = None
    tid: int | str = 0
    args: Args | None = None


class _File(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents", default_factory=list)


_FILE = msgspec.json.Decoder(_File)


@dataclass(frozen=True, kw_only=True)
class Open:
    """What something began in."""

    operator: str
    module: str
    line: str
    backward_of: int | None = None  # sequence number of what it is the backward of


@dataclass(frozen=True, kw_only=True)
class Forward:
    """Where nodes of the forward pass were made."""

    made: Mapping[int, Open]  # by sequence number

    def of(self, found: Open) -> Open:
        """Return what something began in; what is not known of it is that of its forward pass."""
        made = self.made.get(found.backward_of) if found.backward_of is not None else None
        if made is None:
            return found
        module = made.module if found.module == UNKNOWN else found.module
        return replace(found, module=module, line=made.line if found.line == UNKNOWN else found.line)


def events_of(path: Path) -> list[Event]:
    """Return all events of a capture.

    Raises:
        NotACapture: It is none, or damaged.
    """
    try:
        return _FILE.decode(content_of(path).document).events
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotACapture(f"{path} is not a complete capture of PyTorch's profiler: {error}") from error


def begun(events: Sequence[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield launches, operators and Python functions with what is open around them, the outermost first."""
    threads: dict[int | str, list[Event]] = defaultdict(list)
    for event in events:
        if event.dur is not None and event.cat not in GPU_CATEGORIES and _counts(event):
            threads[event.tid].append(event)
    for own in threads.values():
        own.sort(key=lambda event: (event.ts, -(event.dur or 0.0)))
        stack: list[Event] = []
        for event in own:
            while stack and stack[-1].ts + (stack[-1].dur or 0.0) <= event.ts:
                stack.pop()
            yield event, stack
            if not is_launch(event):
                stack.append(event)


def is_launch(event: Event) -> bool:
    """Say whether a call of the GPU's runtime started work."""
    return event.args is not None and event.args.correlation is not None and event.cat not in OPERATORS


def _counts(event: Event) -> bool:
    return is_launch(event) or event.cat in OPERATORS or event.cat == "python_function"


def opened(stack: Sequence[Event]) -> Open:
    """Return what is innermost of a stack."""
    return Open(operator=_operator(stack), module=_module(stack), line=_line(stack), backward_of=_backward_of(stack))


def forward_of(events: Sequence[Event]) -> Forward:
    """Return where nodes were made, of captures that tell modules or lines."""
    if not any(event.cat == "python_function" or (event.args and event.args.stack) for event in events):
        return Forward(made={})
    made: dict[int, tuple[float, Open]] = {}
    for event, stack in begun(events):
        number = _sequence(event)
        if number is None or not _is_forward(event) or made.get(number, (event.ts,))[0] > event.ts:
            continue
        made[number] = event.ts, opened([*stack, event])
    return Forward(made={number: found for number, (_, found) in made.items()})


def _sequence(event: Event) -> int | None:
    number = event.args.sequence if event.args is not None and event.cat in OPERATORS else None
    return number if isinstance(number, int) and number >= 0 else None


def _is_forward(event: Event) -> bool:
    return event.args is not None and event.args.forward_thread in (None, 0)


def _backward_of(stack: Sequence[Event]) -> int | None:
    numbers = (_sequence(event) for event in reversed(stack) if not _is_forward(event))
    return next((number for number in numbers if number is not None), None)


def _innermost(stack: Sequence[Event], chosen: Callable[[Event], bool]) -> str | None:
    return next((event.name for event in reversed(stack) if chosen(event)), None)


def _operator(stack: Sequence[Event]) -> str:
    return _innermost(stack, lambda event: event.cat in OPERATORS) or UNKNOWN


def _module(stack: Sequence[Event]) -> str:
    name = _innermost(stack, lambda event: event.name.startswith(_MODULE))
    return name.removeprefix(_MODULE) if name is not None else UNKNOWN


def _line(stack: Sequence[Event]) -> str:
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
