"""How do we keep out of what torch.compile reads? Every function of ours is marked to run as it is.

A compiler that is on looks at each Python frame that begins. To meet ours would cost it seconds, count in its
statistics and print its warnings. Torch's own files are left out by their path; ours are by this mark on their code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

_done: set[str] = set()


def keep_from_compiler(torch: Any, package: str = "paceline") -> None:
    """Mark all functions of those modules of a package that have been imported since the last call."""
    try:
        frames = torch._C._dynamo.eval_frame
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        mark = frames.set_code_exec_strategy
    except AttributeError:
        return  # another torch than those we know: then its compiler reads us, which only takes longer
    for name in [name for name in sys.modules if name.split(".")[0] == package and name not in _done]:
        _done.add(name)
        for code in _codes(sys.modules[name]):
            mark(code, strategy)


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of every function that a module defines, with all that is defined inside."""
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
