"""Exclude Paceline's functions from torch.compile: each function is marked to be skipped.

While the compiler is on, it checks each Python frame that starts. Compiling Paceline's frames would cost seconds,
change the compiler's statistics and cause warnings. Torch's own files are excluded by path; Paceline's functions by
this mark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

_done: set[str] = set()


def keep_from_compiler(torch: Any, package: str = "paceline") -> None:
    """Exclude all functions in those modules of a package that were imported since the last call."""
    try:
        frames = torch._C._dynamo.eval_frame
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        mark = frames.set_code_exec_strategy
    except AttributeError:
        return  # an unknown torch: its compiler traces Paceline's functions, which only takes longer
    for name in [name for name in sys.modules if name.split(".")[0] == package and name not in _done]:
        _done.add(name)
        for code in _codes(sys.modules[name]):
            mark(code, strategy)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of every function that a module defines, including inner functions."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) == module.__name__:
            for owner in [value, *vars(value).values()] if isinstance(value, type) else [value]:
                code = getattr(getattr(owner, "fget", None) or getattr(owner, "__wrapped__", owner), "__code__", None)
                if isinstance(code, CodeType):
                    yield from _with_inner(code)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
