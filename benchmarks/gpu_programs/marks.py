"""The profiler's word for the phases: ranges around them in the last 24 steps; nothing before, or without --trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

TRACED = 24


class Marks:
    """Names phases while the profiler is on. `steps` is how many the program will do."""

    def __init__(self, path: str | None, steps: int, device: str) -> None:
        self._path = path
        self._from = steps - TRACED
        self._step = 0
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if device == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=kinds) if path else None
        self._on = False

    def begin_step(self) -> None:
        """Call it where the step before has ended."""
        if self._profiler is not None and self._step == self._from:
            self._profiler.start()
            self._on = True
        self._step += 1

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if not self._on:
            yield
            return
        with torch.profiler.record_function(f"phase:{name}"):
            yield

    def end(self) -> None:
        if self._profiler is not None and self._on:
            self._profiler.stop()
            self._profiler.export_chrome_trace(str(self._path))
