"""How far is it? A bar on a terminal, a line now and then elsewhere; both on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

import click

_QUIET_S = 10.0  # between two lines, where there is no terminal


class Bar:
    """Shows how much is done; it is called with what is done, and all."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._terminal = sys.stderr.isatty()
        self._begun = self._told = time.monotonic()
        self._shown = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown and self._terminal:
            click.echo("\r\033[K", nl=False, err=True)

    def __call__(self, done: int, whole: int) -> None:
        """Show it."""
        now = time.monotonic()
        if now - self._told < (0.1 if self._terminal else _QUIET_S):
            return
        self._told, self._shown = now, True
        share = done / whole if whole else 1.0
        text = f"{done:,} of {whole:,} {self._noun}, {share:.0%}"
        if 0 < share < 1:
            text += f", {(now - self._begun) * (1 - share) / share:.0f} s left"
        if self._terminal:
            filled = round(24 * share)
            click.echo(f"\r\033[K  {'█' * filled}{'░' * (24 - filled)}  {text}", nl=False, err=True)
        else:
            click.echo(f"paceline: {text}", err=True)
