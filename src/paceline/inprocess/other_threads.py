"""Read the stacks of other threads of the program, and list objects, without disturbing these threads."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple

_COLLECTOR_INTERRUPTS = sys.version_info < (3, 12)  # the garbage collector can run while Python creates an object


class StackEntry(NamedTuple):
    """One function call on the stack of a thread.

    Attributes:
        code: The code of the function.
        line: The current line; None if the current instruction belongs to no line.
        module: The name of the module that the function is defined in.
        moment: The identity of the call and its current instruction. It differs if the thread has moved on.
    """

    code: CodeType
    line: int | None
    module: str
    moment: tuple[int, int]


def stack_of(thread: int, most: int) -> list[StackEntry]:
    """Return the innermost calls of a thread by its ident, innermost first; an empty list if the thread has ended.

    Args:
        thread: The ident of the thread.
        most: The largest number of calls to return.
    """
    found: list[StackEntry] = []
    with _no_collection():
        frame = sys._current_frames().get(thread)
        while frame is not None and len(found) < most:
            module = str(frame.f_globals.get("__name__", ""))
            found.append(StackEntry(frame.f_code, frame.f_lineno, module, (id(frame), frame.f_lasti)))
            frame = frame.f_back
    return found


def objects_of(kind: type) -> list[Any]:
    """Return all objects of a class and of its subclasses that the garbage collector tracks; runs no user code.

    `gc.get_objects` also returns tuples that other threads have not finished, and a thread that finishes such a tuple
    while the list exists gets a SystemError. The objects of a class are among those that refer to the class.
    """
    return [each for each in gc.get_referrers(*_with_subclasses(kind)) if issubclass(type(each), kind)]


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, type.__subclasses__(kind)))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Prevent garbage collection in this thread while Python creates frame objects for another thread.

    In Python 3.11, a collection can start while `sys._current_frames` or `f_back` creates a frame object. If a
    finalizer then lets the other thread run, the call can end, and the new frame object refers to freed memory: the
    process crashes.
    """
    collects = _COLLECTOR_INTERRUPTS and gc.isenabled()
    if collects:
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
