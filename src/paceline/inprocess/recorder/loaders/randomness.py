"""Detect whether loading samples draws random numbers: compare the global generators before and after some batches.

If it draws random numbers, another number of workers draws other numbers, so training changes.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def states() -> tuple[Any, ...]:
    """Return the states of Python's, numpy's and torch's global generators in a comparable form."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        random.getstate(),
        _of_numpy(numpy) if numpy else None,
        _of_torch(torch) if torch else None,
    )


def _of_numpy(numpy: Any) -> tuple[bytes, int]:
    _, keys, position, *_ = numpy.random.get_state()
    return keys.tobytes(), int(position)


def _of_torch(torch: Any) -> bytes:
    with torch._C.DisableTorchFunction():  # hide the call from the program's function modes
        return bytes(torch.default_generator.get_state().tolist())


def holds_generator(dataset: Any) -> bool:
    """Return whether a dataset has a random generator among its attributes."""
    held = list(vars(dataset).values()) if hasattr(dataset, "__dict__") else []
    names = {f"{type(value).__module__}.{type(value).__name__}" for value in held}
    return bool(names & {"random.Random", "numpy.random._generator.Generator", "torch._C.Generator"}) or any(
        name.endswith(".RandomState") for name in names
    )
