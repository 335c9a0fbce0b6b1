"""The output of a model during a trial call: text, log messages and files.

Text and log messages of trial calls are not shown, unless by `Said.tell`.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_WRITES = ("write", "writelines")
_WRITES_ROWS = ("writerow", "writerows")  # of csv


@dataclass
class Said:
    """The output of one trial call.

    Attributes:
        text: The text on stdout.
        messages: The log messages, each with its logger.
        file: The path of a file that the call wrote to, or opened to write, or a description; "" if there is none.
    """

    text: str = ""
    messages: list[tuple[logging.Logger, logging.LogRecord]] = field(default_factory=list)
    file: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines of the text, and the log messages."""
        return [*self.text.splitlines(), *(record.getMessage() for _, record in self.messages)]

    def tell(self) -> None:
        """Show the text and the log messages to the user, and forget them."""
        sys.stdout.write(self.text)
        for logger, record in self.messages:
            logger.callHandlers(record)
        self.text, self.messages = "", []


@contextlib.contextmanager
def noted() -> Iterator[Said]:
    """Return a context that records the output of this thread. Text and log messages are not shown to the user."""
    said, text = Said(), io.StringIO()
    with contextlib.redirect_stdout(text), _logged(said), _opened(said), _written(said):
        try:
            yield said
        finally:
            said.text = text.getvalue()


@contextlib.contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function of a module or class in this context."""
    before = getattr(owner, name)
    replacement = make(before)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if getattr(owner, name) is replacement:
            setattr(owner, name, before)


def _logged(said: Said) -> contextlib.AbstractContextManager[None]:
    """Record log messages of this thread. They do not reach the handlers of the program."""
    thread = threading.get_ident()

    def collecting(before: Any) -> Any:
        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if threading.get_ident() == thread:
                said.messages.append((logger, record))
            else:
                before(logger, record)

        return call_handlers

    return _replaced(logging.Logger, "callHandlers", collecting)


def _opened(said: Said) -> contextlib.AbstractContextManager[None]:
    """Record a file that this thread opens for writing."""
    thread = threading.get_ident()

    def noting(before: Any) -> Any:
        def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread and set(mode) & set("wax+"):
                said.file = str(file)
            return before(file, mode, *args, **kwargs)

        return open_file

    return _replaced(builtins, "open", noting)


@contextlib.contextmanager
def _written(said: Said) -> Iterator[None]:
    """Record a file object that this thread writes to. A profile function detects calls of C functions."""

    def seen(frame: Any, event: str, function: Any) -> None:
        if event != "c_call":
            return
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if name in _WRITES and isinstance(owner, _FILES) and owner is not sys.__stderr__:
            said.file = str(getattr(owner, "name", "a file"))
        elif name in _WRITES_ROWS and type(owner).__module__ == "_csv":
            said.file = "a CSV file"

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)
