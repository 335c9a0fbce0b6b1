"""Sidecar process that samples the gauges of a host on which `paceline run` does not start the ranks.

    python -m paceline.monitor.gauges RUN_DIR --parent PID

The sidecar ends only at SIGTERM or when the parent process ends, which it checks every half second. It ignores Ctrl-C
and a lost terminal: those signals end the program, and then the sidecar. It has no output and keeps none of the
program's pipes open. Several sidecars can run on a host: one samples, and another takes over if the first one ends.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from paceline.hardware.operating_system import LocalFiles
from paceline.monitor.gauges.sampler import GaugeSampler
from paceline.monitor.gauges.tree import Process, read_process

_LOOK_EVERY_S = 0.5
_LOOKS_A_TURN = 6  # a waiting sidecar tries to take over after this number of checks
_LAST_SAMPLE_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample the host's gauges until the parent process ends, and return the exit code."""
    options = _parser().parse_args(arguments)
    run_dir = Path(options.run_dir).resolve()
    ended = threading.Event()
    _live_quietly(ended)
    parent = read_process(LocalFiles(), options.parent)
    if parent is not None:
        _sample_beside(run_dir, parent, [options.parent, *options.root], ended)
    return 0


def _sample_beside(run_dir: Path, parent: Process, roots: Sequence[int], ended: threading.Event) -> None:
    sampler = _started(run_dir, roots)
    for look in itertools.count(1):
        if not _lives(parent) or ended.wait(_LOOK_EVERY_S):
            break
        if sampler.in_use and look % _LOOKS_A_TURN == 0:
            sampler = _started(run_dir, roots)
    sampler.stop(_LAST_SAMPLE_S)


def _started(run_dir: Path, roots: Sequence[int]) -> GaugeSampler:
    sampler = GaugeSampler(run_dir, roots)
    sampler.start()
    return sampler


def _lives(parent: Process) -> bool:
    now = read_process(LocalFiles(), parent.pid)
    return now is not None and now.started_ticks == parent.started_ticks and now.state not in "ZX"


def _live_quietly(ended: threading.Event) -> None:
    """Release the program's streams, terminal and folder, and ignore signals other than SIGTERM."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: ended.set())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paceline.monitor.gauges", description="Take the gauges of this host for a run."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="folder of the run")
    parser.add_argument("--parent", type=int, required=True, metavar="PID", help="end when this process does")
    parser.add_argument(
        "--root", type=int, action="append", default=[], metavar="PID", help="count this process as the run's own too"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
