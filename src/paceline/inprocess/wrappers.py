"""How does a function of ours take the place of torch's? Always like this: harmlessness is kept in one place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from paceline.inprocess import hooks

Begin = Callable[[Any, Any], Any]
End = Callable[[Any, Any, BaseException | None], None]


def stand_in(original: Any, where: str, begin: Begin, end: End | None = None) -> Any:
    """Return a function that does what `original` does, between `begin` and `end`.

    An exception passes through without a trace of us; a fault of `begin` or `end` ends watching, never the call; and
    a compiler that reads along reads the original.

    Args:
        original: What is stood in for.
        where: Which probe this is, for the warning when it fails.
        begin: Called with args and kwargs; returns what `end` shall get, or None to leave this call alone.
        end: Called with that, the result (None when it failed) and the exception (None when it did not).
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
                raised = None  # or the exception would hold its own frame
        return result

    return standing_in


def _nothing(begun: Any, result: Any, raised: BaseException | None) -> None:
    """Do nothing."""


def step_out(error: BaseException) -> None:
    """Take the frame that catches this exception out of its traceback, as if it had never been in between."""
    traceback = error.__traceback__
    error.__traceback__ = traceback.tb_next if traceback is not None else None
