"""Print what Paceline says of each labelled program: expected, got, seconds, and a total.

python tests/labelled/score.py [--group data] [--json FILE] [ID ...]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--group")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="keep each program's JSON and stderr in this folder")
    args = parser.parse_args()
    chosen = [
        case
        for case in cases.load()
        if (not args.ids or case.id in args.ids) and (not args.group or case.group == args.group)
    ]
    print(f"{'program':26} {'expected':24} {'got':24} {'s':>5} {'others':>6}")
    rows = [score(case, args.keep) for case in chosen]
    right = sum(row["right"] for row in rows)
    broken = sum(bool(row["broken"]) for row in rows)
    print(f"\n{right} of {len(rows)} verdicts right, {broken} programs with a broken promise")
    print("`others` is the number of cores that neighbours took; answers from a busy machine count less.")
    if args.json:
        args.json.write_text(json.dumps(document(rows), indent=1) + "\n")
    return 0 if rows and right == len(rows) and not broken else 1


def document(rows: list[dict]) -> dict:
    """Return the scores with what they were measured on."""
    return {
        "schema": "paceline.benchmark.labelled/2",
        "date": time.strftime("%Y-%m-%d"),
        "device": f"CPU, {os.cpu_count()} cores, no GPU",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "right": sum(row["right"] for row in rows),
        "of": len(rows),
        "programs": rows,
    }


def score(case: cases.Case, keep: Path | None) -> dict:
    idle = cases.wait_until_idle(60 if case.needs_idle else 10)
    with tempfile.TemporaryDirectory() as folder:
        outcome = cases.watch(case, Path(folder))
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{case.id}.json").write_text(json.dumps(outcome.report, indent=1))
        (keep / f"{case.id}.stderr").write_text(outcome.stderr)
    got, right = cases.verdict(outcome.report), cases.agrees(case, outcome)
    broken = cases.broken_promises(case, outcome)
    fault = "" if right else f"  <- lacks {', '.join(case.must_find)}" if got in case.verdict else "  <- wrong"
    busy = "" if idle else "  (busy machine)"
    numbers = f"{outcome.seconds:5.1f} {outcome.neighbours:6.1f}"
    print(f"{case.id:26} {case.verdict[0]:24} {got:24} {numbers}{fault}{busy}", flush=True)
    for line in broken:
        print(f"{'':26} ! {line}", flush=True)
    return {
        "id": case.id,
        "expected": list(case.verdict),
        "got": got,
        "right": right,
        "broken": broken,
        "seconds": outcome.seconds,
        "other_cores": outcome.neighbours,
    }


if __name__ == "__main__":
    sys.exit(main())
