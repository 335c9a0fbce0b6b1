"""Wrappers for functions of torch. All patches use them, so that safety is implemented in one place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from paceline.inprocess import hooks

Begin = Callable[[Any, Any], Any]
End = Callable[[Any, Any, BaseException | None], None]


def stand_in(original: Any, where: str, begin: Begin, end: End | None = None) -> Any:
    """Return a wrapper of `original` that calls `begin` before and `end` after it.

    Exceptions of `original` pass through without the wrapper in the traceback. A fault in `begin` or `end` stops
    recording, never the call. A compiler that traces the call traces only `original`.

    Args:
        original: The wrapped function.
        where: The name of the probe, for the warning about a fault.
        begin: Called with args and kwargs. It returns a value for `end`, or None to skip `end` for this call.
        end: Called with this value, the result (None after an exception) and the exception (None without one).
    """
    compiling, over = sys.modules["torch"].compiler.is_compiling, end or _nothing

    @functools.wraps(original)
    def standing_in(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        begun = result = raised = None
        try:
            begun = begin(args, kwargs)
        except Exception as error:
            hooks.fault(error, where)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            raised = error
            step_out(error)
            raise
        finally:
            if begun is not None:
                try:
                    over(begun, result, raised)
                except Exception as error:
                    hooks.fault(error, where)
                raised = None  # otherwise the exception would refer to its own frame
        return result

    return standing_in


def _nothing(begun: Any, result: Any, raised: BaseException | None) -> None:
    """Do nothing."""


def step_out(error: BaseException) -> None:
    """Remove the current frame from the traceback of a caught exception."""
    traceback = error.__traceback__
    error.__traceback__ = traceback.tb_next if traceback is not None else None
