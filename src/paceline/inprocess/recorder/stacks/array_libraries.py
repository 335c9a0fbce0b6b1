"""Detect functions that compute with arrays of another library than torch.

An environment of reinforcement learning, or an assignment of targets, often computes with NumPy. NumPy releases the GIL
as torch does, so the state of the thread does not distinguish the two. The global names that a function loads show the
library.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

_ARRAYS = frozenset(
    (
        "numpy",
        "scipy",
        "pandas",
        "polars",
        "pyarrow",
        "PIL",
        "cv2",
        "skimage",
        "sklearn",
        "numba",
        "shapely",
        "networkx",
    )
)
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_uses: dict[CodeType, str | None] = {}
_modules: dict[str, Mapping[str, Any]] = {}


def works_on_other_arrays(code: CodeType) -> bool | None:
    """Return True if a function uses or belongs to an array library but not to torch, False for torch, else None."""
    if code not in _uses:
        _uses[code] = _library_of(code)
    library = _uses[code]
    return None if library is None else library != "torch"


def _library_of(code: CodeType) -> str | None:
    """Return ``torch`` if a function belongs to torch or uses it, else the array library that it belongs to or uses."""
    own = _package(code.co_filename)
    if own in _ARRAYS or own == "torch":
        return own
    variables = _module_of(code.co_filename)
    used = {_root(variables[name]) if name in variables else name for name in _names(code)}
    return "torch" if "torch" in used else next((name for name in used if name in _ARRAYS), None)


def _package(filename: str) -> str:
    """Return the name of the installed package that contains a file; empty for other files."""
    for packages in ("site-packages", "dist-packages"):
        _, installed, inside = filename.rpartition(f"{os.sep}{packages}{os.sep}")
        if installed:
            return inside.partition(os.sep)[0]
    return ""


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function and its inner functions load."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS:
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _module_of(filename: str) -> Mapping[str, Any]:
    """Return the variables of the module that was loaded from a file; empty if there is none."""
    if filename not in _modules:
        loaded = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
        files = (filename, os.path.abspath(filename))
        own = next((m for m in loaded if m.__dict__.get("__file__") in files), None)
        _modules[filename] = {} if own is None else own.__dict__
    return _modules[filename]


def _root(value: Any) -> str:
    """Return the package of a module, function or class; for another object, the package of its class."""
    names: list[Any]
    if isinstance(value, ModuleType):
        names = [value.__name__]
    elif isinstance(value, (FunctionType, BuiltinFunctionType)):
        names = [value.__module__]
    else:
        names = [
            kind.__dict__.get("__module__") for kind in type.mro(value if isinstance(value, type) else type(value))
        ]
    roots = [str(name or "").partition(".")[0] for name in names]
    return "torch" if any(root.startswith("torch") for root in roots) else roots[0]
