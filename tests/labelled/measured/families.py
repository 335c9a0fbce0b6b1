"""Compare what Paceline says of programs with what the programs measured of themselves.

    python tests/labelled/measured/families.py [--json FILE] [ID ...]

A family is a shape of training; its members differ in how long a part of the step takes. The truth is no opinion: the
program counts its steps and clocks its parts (`program.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "program.py"
TOLERANCE = 0.12  # of a share
LARGE = 0.3  # share from which a part has to be the verdict
HEALTHY = ("balanced", "compute-bound", "launch-bound", "bandwidth-bound", "cpu-contended", "optimizer-unfused")
VERDICTS: Mapping[str, Sequence[str]] = {
    "other": ("host-code-heavy",),
    "evaluation": ("evaluation-heavy",),
    "data_wait": (
        "loader-serial",
        "loader-jitter",
        "loader-io-bound",
        "loader-underprovisioned",
    ),
}


@dataclass(frozen=True)
class Member:
    """One program of a family."""

    shape: str
    amount: float

    @property
    def id(self) -> str:
        return f"{self.shape}-{self.amount:g}"


def members() -> list[Member]:
    """Return all programs."""
    with_parts = ("serial", "jitter", "producer", "thread", "environment", "evaluation")
    found = [Member(shape, amount) for shape in with_parts for amount in (2, 6, 12, 25)]
    return [*found, *(Member(shape, 6) for shape in ("plain", "sizes", "clients"))]


def run(member: Member, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a program under Paceline; return what it measured, and the report."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "paceline", "run", "--quiet", "--json", str(report), str(PROGRAM)]
    done = subprocess.run(
        [*command, member.shape, "--amount", str(member.amount)],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(done.stdout.splitlines()[-1]), json.loads(report.read_text())


def wrong(truth: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """Return what a report says that the program measured otherwise."""
    found = []
    if report["steps"]["count"] != truth["steps"]:
        found.append(f"{report['steps']['count']} steps, and {truth['steps']} were made")
    for part, share in truth["shares"].items():
        told = report["phases"][part]["share"]
        if abs(told - share) > TOLERANCE:
            found.append(f"{part} takes {told:.0%}, and {share:.0%} were measured")
    verdict = report["verdict"]
    largest = max(truth["shares"], key=truth["shares"].get, default=None)
    if largest is not None and truth["shares"][largest] >= LARGE:
        if verdict not in (*VERDICTS[largest], "cpu-contended"):
            found.append(f"the verdict is {verdict}, and {largest} takes {truth['shares'][largest]:.0%}")
    elif not truth["shares"]:
        found += [f"{f['code']} is critical" for f in report["findings"] if f["severity"] == "critical"]
        if verdict not in (*HEALTHY, "loader-serial"):  # a loader for each client may take long
            found.append(f"the verdict is {verdict}, and nothing is wrong")
    return found


def main() -> int:
    """Print one row per program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--json", type=Path)
    wanted = parser.parse_args()
    rows = []
    for member in members():
        if wanted.ids and member.id not in wanted.ids:
            continue
        with tempfile.TemporaryDirectory() as folder:
            truth, report = run(member, Path(folder))
        faults = wrong(truth, report)
        rows.append({"id": member.id, "truth": truth, "verdict": report["verdict"], "wrong": faults})
        shares = ", ".join(f"{part} {share:.0%}" for part, share in truth["shares"].items())
        print(f"{member.id:18} {report['verdict']:24} {shares:18} {'; '.join(faults)}", flush=True)
        if wanted.json:
            wanted.json.write_text(json.dumps(rows, indent=1))
    print(f"{sum(not row['wrong'] for row in rows)} of {len(rows)} agree with what the programs measured")
    return 0 if rows and not any(row["wrong"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
