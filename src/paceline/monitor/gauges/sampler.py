"""The gauge sampler: a thread in `paceline run` or in a sidecar that appends readings of the host to the run.

Lines of ``<run>/gauges/<host>.jsonl``: a ``header`` with fixed properties, then a ``host`` line at every sample, with
the readings of the GPUs in ``gpus``. An ``unavailable`` line follows when a value stops being readable. A sampler that
takes over a file from an earlier sampler writes a header first.

No exception leaves the sampler. A reading that fails is None with a reason. If the file cannot be written, the sampler
stops and `problem` gives the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.hardware.operating_system import HostFiles, LocalFiles
from paceline.monitor.gauges.clock import Clock, SystemClock
from paceline.monitor.gauges.driver import open_gpus, patiently
from paceline.monitor.gauges.lines import FileInUse
from paceline.monitor.gauges.nvidia import GpuReader
from paceline.monitor.gauges.session import Session

_INTERVALS_S = ((600.0, 1.0), (float("inf"), 5.0))  # (seconds since the start, interval up to that time)


def interval_s(elapsed_s: float) -> float:
    """Return the interval between samples, given the time since the start. It grows to limit the file size."""
    return next(interval for until, interval in _INTERVALS_S if elapsed_s < until)


class GaugeSampler:
    """Appends readings of this host to a run. `problem` is the reason if the sampler has stopped, else None."""

    def __init__(
        self,
        run_dir: Path,
        roots: Sequence[int] = (),
        *,
        files: HostFiles | None = None,
        clock: Clock | None = None,
        open_gpus: Callable[[], GpuReader] = open_gpus,
    ) -> None:
        """Store the arguments; nothing is read or written yet.

        Args:
            run_dir: Folder of the run.
            roots: Processes that belong to the run with all their descendants. The ranks of this host with a folder in
                the run are added.
            files: Replaces /proc and /sys, for tests.
            clock: Replaces the clocks, for tests.
            open_gpus: Replaces the driver, for tests.
        """
        self.problem: str | None = None
        self.in_use = False  # whether the sampler stopped because another sampler writes the file, which may end first
        self._run_dir = run_dir
        self._clock = clock or SystemClock()
        self._ended = threading.Event()
        find_gpus = partial(patiently, open_gpus, self._ended)
        self._open = partial(Session, run_dir, tuple(roots), files or LocalFiles(), self._clock, find_gpus)
        self._session: Session | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread that samples."""
        self._thread = threading.Thread(target=self._sample_on, name="paceline-gauges", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Take a last sample and stop the thread. The call returns after `timeout_s` even if the driver hangs."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def sample_once(self) -> dict[str, Any] | None:
        """Take one sample and append its line.

        Returns:
            The line, or None if there is no line: at the first call, which writes the header and reads the first
            counters; if the last sample is too recent; and if the sampler has stopped.
        """
        if self.problem is not None:
            return None
        try:
            return self._sample()
        except FileInUse as error:
            self.in_use = True
            self._switch_off(f"{error.strerror}: {error.filename}")
        except OSError as error:
            self._switch_off(f"cannot write to {self._run_dir}: {error.strerror or error}")
        except Exception as error:
            self._switch_off(f"{type(error).__name__}: {error}")
        return None

    def _sample(self) -> dict[str, Any] | None:
        if self._session is None:
            self._session = self._open()
            return None
        return self._session.sample()

    def _sample_on(self) -> None:
        began_ns = self._clock.monotonic_ns()
        self.sample_once()
        due_s = 0.0
        while self.problem is None:
            elapsed_s = (self._clock.monotonic_ns() - began_ns) / 1e9
            due_s = max(due_s + interval_s(elapsed_s), elapsed_s)  # missed samples are skipped
            if self._ended.wait(due_s - elapsed_s):
                break
            self.sample_once()
        self.sample_once()
        self._close()

    def _switch_off(self, why: str) -> None:
        self.problem = f"gauges are off: {why}"
        self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
