"""Find the lines at which the training thread waits for the device: stack samples whose innermost line reads a value.

``.item()``, ``.cpu()``, ``.tolist()``, ``.numpy()``, ``float(tensor)``, printing a tensor and
``torch.cuda.synchronize()`` return only after the device has finished all queued work.
"""

from __future__ import annotations

import linecache
import os
import re
from collections import Counter
from collections.abc import Callable
from types import CodeType
from typing import Any

_ASKS = re.compile(
    r"\.(item|tolist|numpy)\(|\.cpu\(|\.to\(\s*(device\s*=\s*)?['\"]cpu|\bfloat\(|\bprint\(|cuda\.synchronize\(|\.synchronize\("
)
# Python files of torch that implement these calls. Other torch frames on such a line do not wait for a value.
_THROUGH = ("_tensor.py", "_tensor_str.py", os.path.join("cuda", "__init__.py"), os.path.join("cuda", "streams.py"))
_MOST_TEXT = 120


class SyncLines:
    """Counts samples that wait for the device, by slot and line."""

    def __init__(self, kind_of: Callable[[str], str], label: Callable[[CodeType, int], str]) -> None:
        self._kind_of = kind_of
        self._label = label
        self._counts: Counter[tuple[str, CodeType, int]] = Counter()
        self._texts: dict[tuple[CodeType, int], str] = {}

    def count(self, frames: list[tuple[CodeType, int]], slot: str) -> None:
        """Count one stack, innermost frame first, if the program's innermost line reads a value from the device."""
        for code, line in frames:
            kind = self._kind_of(code.co_filename)
            if kind == "torch" and code.co_filename.endswith(_THROUGH):
                continue
            if kind in ("user", "library") and _ASKS.search(self._text(code, line)):
                self._counts[slot, code, line] += 1
            return

    def _text(self, code: CodeType, line: int) -> str:
        key = (code, line)
        if key not in self._texts:
            self._texts[key] = linecache.getline(code.co_filename, line).strip()[:_MOST_TEXT]
        return self._texts[key]

    def as_json(self, most: int = 20) -> list[dict[str, Any]]:
        """Return the lines with the most samples: slot, function and line, source text, count."""
        return [
            {
                "slot": slot,
                "function": self._label(code, line),
                "file": os.path.abspath(code.co_filename),
                "text": self._text(code, line),
                "count": count,
            }
            for (slot, code, line), count in self._counts.most_common(most)
        ]
