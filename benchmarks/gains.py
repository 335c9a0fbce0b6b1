"""Do the gains that `paceline run` promises hold? Each scenario: the promise, the change, and the gain it brings.

    python benchmarks/gains.py [--json FILE] [ID ...]

A scenario is a fault of `gain_programs/trainer.py`. Paceline watches it and promises a gain for a remedy; then the
program trains in turns without and with this remedy, which gives the gain. The interval holds if the measured gain is
in it, give or take 5% for noise. Timings beside other programs say little: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _machine

PROGRAM = Path(__file__).parent / "gain_programs" / "trainer.py"
NOISE = 0.05
WORTH = 1.03  # promises that end below this are none


def workers(change: str) -> str:
    """Return the flags of `DataLoader(num_workers=6, …)`."""
    found = re.search(r"num_workers=(\d+)", change)
    factor = re.search(r"prefetch_factor=(\d+)", change)
    return f"--workers {found[1]}" + (f" --prefetch {factor[1]}" if factor else "") + " --keep" if found else ""


def always(flags: str) -> Callable[[str], str]:
    """Return the same flags for every change."""
    return lambda change: flags


@dataclass(frozen=True)
class Scenario:
    """A fault, and how the remedy is applied."""

    id: str
    flags: str
    remedy: str
    apply: Callable[[str], str]
    environment: Mapping[str, str] | None = None  # of the changed program, which is then another process


def scenarios() -> list[Scenario]:
    """Return all scenarios."""
    found = [
        Scenario(f"serial-{sleep}-{compute}", f"--sleep-ms {sleep} --compute-ms {compute}", "loader.workers", workers)
        for sleep, compute in ((0.5, 6), (1, 3), (1, 12), (2, 6), (2, 20), (4, 12))
    ]
    found += [
        Scenario(
            f"few-workers-{count}-{sleep}",
            f"--workers {count} --sleep-ms {sleep} --compute-ms {compute}",
            "loader.workers",
            workers,
        )
        for count, sleep, compute in ((1, 2, 6), (1, 4, 12), (2, 4, 6), (2, 6, 12))
    ]
    found += [
        Scenario(f"decode-{burn}", f"--burn-ms {burn}", "loader.decode", always(f"--burn-ms {burn / 2}"))
        for burn in (0.5, 1.0, 2.0)
    ]
    found += [
        Scenario(
            f"restart-{epoch}-{sleep}",
            f"--workers 2 --epoch {epoch} --sleep-ms {sleep}",
            "loader.persistent",
            always("--keep"),
        )
        for epoch, sleep in ((6, 0.2), (12, 0.2), (20, 0.2), (12, 4))
    ]
    found += [
        Scenario(
            f"outliers-{outlier}",
            f"--workers 2 --outlier-ms {outlier} --compute-ms 8 --sleep-ms 0.2",
            "loader.prefetch",
            workers,
        )
        for outlier in (150, 300)
    ]
    found += [
        Scenario(
            f"save-{every}-{cost}",
            f"--save-every {every} --save-ms {cost}",
            "checkpoint.less_often",
            always(f"--save-every {10 * every}"),
        )
        for every, cost in ((4, 20), (4, 60), (10, 60), (10, 200), (20, 400))
    ]
    found += [
        Scenario(
            f"evaluate-{every}-{batches}",
            f"--evaluate-every {every} --evaluate-batches {batches}",
            "evaluation.less_often",
            always(f"--evaluate-every {2 * every}"),
        )
        for every, batches in ((4, 4), (10, 10), (10, 30), (20, 30))
    ]
    found += [
        Scenario(f"log-{cost}", f"--log-every 1 --log-ms {cost}", "host.less_often", always("--log-every 10"))
        for cost in (1.5, 3, 6, 12)
    ]
    found += [
        Scenario(f"tensors-{count}", f"--tensors {count} --compute-ms 1", "optimizer.fused", always("--fused"))
        for count in (100, 300)
    ]
    found += [
        Scenario(
            f"faults-{threads}-{rows}-{picture}",
            f"--compute-ms 0 --threads {threads} --rows {rows} --picture {picture} --steps {steps}",
            "memory.retain_host_memory",
            always(""),
            {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)},
        )
        for threads in (1, 2)
        for rows, picture, steps in ((8, 64, 100), (16, 96, 40), (32, 96, 30))
    ]
    return found


def promise(scenario: Scenario, folder: Path) -> dict[str, Any] | None:
    """Watch the program, and return the remedy with its promised gain; None if it was not proposed."""
    report = folder / "run.json"
    command = [sys.executable, "-m", "paceline", "run", "--quiet", "--json", str(report), str(PROGRAM)]
    subprocess.run([*command, *scenario.flags.split()], cwd=folder, check=True, capture_output=True, timeout=200)
    findings = json.loads(report.read_text())["findings"]
    proposed = (r for f in findings for r in f["remedies"] if r["id"] == scenario.remedy and r["gain"])
    return next(proposed, None)


def measure(scenario: Scenario, change: str, folder: Path) -> list[float]:
    """Apply the change, and return the gain of each turn."""
    if scenario.environment:
        pairs = [(step_s(scenario, {}), step_s(scenario, scenario.environment)) for _ in range(3)]
        return [before / after for before, after in pairs]
    command = [sys.executable, str(PROGRAM), *scenario.flags.split(), f"--changed={scenario.apply(change)}"]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=200)
    return [before / after for before, after in json.loads(done.stdout.splitlines()[-1])]


def step_s(scenario: Scenario, environment: Mapping[str, str]) -> float:
    """Train with an environment, and return the seconds of a step."""
    command = [sys.executable, str(PROGRAM), *scenario.flags.split()]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=200, env={**os.environ, **environment}
    )
    return float(done.stdout.split()[0]) / 1e3


def compare(scenario: Scenario) -> dict[str, Any]:
    """Return the promise of a scenario beside what the change brings."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = promise(scenario, folder)
        row: dict[str, Any] = {"id": scenario.id, "remedy": scenario.remedy, "load": os.getloadavg()[0]}
        if told is None or told["gain"]["high"] < WORTH:
            return {**row, "promised": None}
        gains = sorted(measure(scenario, told["change"], folder))
    gain, middle = told["gain"], gains[len(gains) // 2]
    holds = gain["low"] * (1 - NOISE) <= middle <= gain["high"] * (1 + NOISE)
    return {**row, "change": told["change"], "promised": gain, "measured": gains, "gain": middle, "holds": holds}


def main() -> int:
    """Print one row per scenario, and how many intervals hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    rows = []
    print(f"{'scenario':22} {'remedy':24} {'promised':>16} {'basis':9} {'measured':>8}")
    for scenario in scenarios():
        if wanted.ids and scenario.id not in wanted.ids:
            continue
        try:
            row = compare(scenario)
        except (subprocess.SubprocessError, OSError) as error:
            row = {"id": scenario.id, "remedy": scenario.remedy, "promised": None, "error": str(error)[:200]}
        rows.append(row)
        print(line(row), flush=True)
        if wanted.json:
            about = _machine.about(("paceline", "torch"))
            wanted.json.write_text(json.dumps({**about, "noise": NOISE, "rows": rows}, indent=1))
    known = [row for row in rows if row["promised"]]
    print(f"{sum(row['holds'] for row in known)} of {len(known)} intervals hold; {len(rows) - len(known)} not promised")
    return 0


def line(row: dict[str, Any]) -> str:
    """Return one row of the table."""
    if not row["promised"]:
        return f"{row['id']:22} {row['remedy']:24} {row.get('error') or 'not promised':>16}"
    gain = row["promised"]
    span = f"{gain['low']:.2f}x to {gain['high']:.2f}x"
    missed = "" if row["holds"] else "  <- outside"
    return f"{row['id']:22} {row['remedy']:24} {span:>16} {gain['basis']:9} {row['gain']:7.2f}x{missed}"


if __name__ == "__main__":
    sys.exit(main())
