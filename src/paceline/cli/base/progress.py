"""Progress of long work on stderr: a live line on a terminal, otherwise one line every 10 seconds.

The time left is estimated from the rate since the first call. A caller with a better estimate, such as a search with a
time budget, passes the time left.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import click

from paceline.core import units

_BAR_CELLS = 24
_LIVE_S, _LINES_S = 0.1, 10.0  # seconds between two updates, on a terminal and elsewhere
_EARLY = 0.02  # share of the work below which no time left is shown


class Progress:
    """Shows the progress of some work; used as a context manager.

    Args:
        noun: The counted items, such as ``samples``.
    """

    def __init__(self, noun: str = "") -> None:
        self._noun = noun
        self._terminal = sys.stderr.isatty()
        self._shown_at = time.monotonic()
        self._first: tuple[float, float] | None = None  # time and share of the first call
        self._live = ""
        self._writing = threading.Lock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._erase()
        self._live = ""

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` items are done."""
        self.update(done / total if total else 1.0, f"{done:,} of {total:,} {self._noun}")

    def update(self, share: float, text: str, left_s: float | None = None) -> None:
        """Show the completed share of the work and the time left.

        Args:
            share: The completed share, from 0 to 1.
            text: What is done, or in progress.
            left_s: Time left in seconds; None to estimate it from the rate so far.
        """
        now = time.monotonic()
        if self._first is None:
            self._first = now, share
        if now - self._shown_at >= (_LIVE_S if self._terminal else _LINES_S):
            self._shown_at = now
            self._show(share, text, self._left_s(now, share) if left_s is None else left_s)

    def note(self, text: str) -> None:
        """Print a permanent line above the live line."""
        with self._writing:
            self._erase()
            click.echo(f"paceline: {text}", err=True)
            if self._live:
                click.echo(self._live, nl=False, err=True)

    @contextmanager
    def counting_down(self, total_s: float) -> Iterator[Callable[[str], None]]:
        """Show the time left of a budget: on a terminal once a second, otherwise only the permanent lines.

        Yields:
            A function that prints a permanent line; the live line repeats the last of these lines.
        """
        told, over, begun = [""], threading.Event(), time.monotonic()

        def tell(text: str) -> None:
            told[0] = text
            self.note(text)

        def show() -> None:
            while not over.wait(1.0):
                spent = time.monotonic() - begun
                self.update(min(1.0, spent / total_s), told[0], max(0.0, total_s - spent))

        thread = threading.Thread(target=show, daemon=True)
        if self._terminal:
            thread.start()
        try:
            yield tell
        finally:
            over.set()
            if self._terminal:
                thread.join()

    def _left_s(self, now: float, share: float) -> float | None:
        """Return the seconds left, estimated from the rate since the first call.

        The first call is the reference because an interrupted conversion starts above 0.
        """
        begun, first = self._first or (now, share)
        if share - first < _EARLY:
            return None
        return (now - begun) * (1 - share) / (share - first)

    def _show(self, share: float, text: str, left_s: float | None) -> None:
        left = "" if left_s is None or share >= 1 else f", {units.rough_seconds(left_s)} left"
        line = f"{text}, {share:.0%}{left}"
        if not self._terminal:
            click.echo(f"paceline: {line}", err=True)
            return
        filled = round(_BAR_CELLS * share)
        bar = "█" * filled + "░" * (_BAR_CELLS - filled)
        with self._writing:
            self._erase()
            self._live = f"  {bar}  {line}"[: shutil.get_terminal_size().columns - 1]
            click.echo(self._live, nl=False, err=True)

    def _erase(self) -> None:
        if self._live and self._terminal:
            click.echo("\r\033[K", nl=False, err=True)
