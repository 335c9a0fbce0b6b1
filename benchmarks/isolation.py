"""What does the isolation of trials by the kernel cost? The same work with and without it, in turn.

    python benchmarks/isolation.py [--json FILE] [--rounds N] [--folder DIR]

Each task runs in a new process, without isolation and with it, and the order alternates from round to round. A task
prints the seconds of its work; the start of the process is timed from outside. The result is the median of the ratios
of the pairs, with the interval of the middle half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _machine import about

from paceline.tune.trials.isolation import Isolation, isolation_for, remove_tree

SCHEMA = "paceline.benchmark.isolation/1"
ROUNDS, FILES, SMALL, LARGE = 12, 2000, 4096, 32 << 20
_TIMED = "import os, time; begun = time.perf_counter()\n{work}\nprint(time.perf_counter() - begun)"
# What is timed in the process; the folder has FILES files f0, f1 ... and a large one.
TASKS: Mapping[str, str] = {
    "read files": f"for n in range({FILES}): open(f'data/f{{n}}', 'rb').read()",
    "list the folder": "for _ in range(20): [one.stat() for one in os.scandir('data')]",
    "write new files": f"for n in range({FILES // 10}): open(f'out{{n}}', 'wb').write(bytes({SMALL}))",
    "append to a file of 32 MiB": "open('data/large', 'ab').write(b'x')",
    "compute": "sum(i * i for i in range(2_000_000))",
}


def main() -> None:
    """Measure, print, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help="where the files are made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        _make_files(folder / "data")
        isolation = isolation_for(folder / "trials", folder, allows_network=False)
        if not isolation.by_kernel:
            sys.exit(f"the kernel does not isolate here: {isolation.why_not}")
        rows = [_row(task, work, isolation, folder, args.rounds) for task, work in TASKS.items()]
        rows.insert(0, _row("start of a process", "", isolation, folder, args.rounds))
    for row in rows:
        low, high = row["ratio_quartiles"]
        print(
            f"{row['task']:28} {1e3 * row['bare_s']:8.1f} ms -> {1e3 * row['isolated_s']:8.1f} ms   "
            f"{row['ratio']:.2f}x ({low:.2f} to {high:.2f}, {row['pairs']} pairs)"
        )
    if args.json is not None:
        args.json.write_text(
            json.dumps({"schema": SCHEMA, "machine": about(["paceline"]), "rows": rows}, indent=2) + "\n"
        )


def _make_files(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        (folder / f"f{number}").write_bytes(bytes(SMALL))
    (folder / "large").write_bytes(bytes(LARGE))


def _row(task: str, work: str, isolation: Isolation, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the times of one task with and without isolation."""
    pairs = []
    for number in range(rounds + 1):
        order = [False, True] if number % 2 else [True, False]
        taken = {isolated: _seconds(work, isolation, folder, isolated=isolated) for isolated in order}
        pairs.append((taken[False], taken[True]))
    pairs = pairs[1:]  # the first one fills the caches
    ratios = sorted(isolated / bare for bare, isolated in pairs)
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "task": task,
        "bare_s": statistics.median(bare for bare, _ in pairs),
        "isolated_s": statistics.median(isolated for _, isolated in pairs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[-1]],
        "pairs": len(pairs),
    }


def _seconds(work: str, isolation: Isolation, folder: Path, *, isolated: bool) -> float:
    """Run a task once; without work, the time of the whole process counts."""
    command: Sequence[str] = [sys.executable, "-I", "-c", _TIMED.format(work=work or "pass")]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trial = Path(tempfile.mkdtemp(dir=folder / "trials"))
        stack.callback(remove_tree, trial)  # what a task changed is the trial's own
        if isolated:
            command = isolation.command(command, trial, place, stack)
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        whole = time.perf_counter() - begun
    for made in folder.glob("out*"):
        made.unlink()
    return float(done.stdout) if work else whole


if __name__ == "__main__":
    main()
