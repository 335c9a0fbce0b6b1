"""Are programs of the usual frameworks watched right, and left alone? Each runs bare and watched; nothing is edited.

    pip install transformers accelerate lightning
    python benchmarks/frameworks.py [--json FILE] [NAME ...]

Checked of each: the same exit code and losses to the last digit, as many steps as the program makes, a verdict, and
that watching did not stop.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "framework_programs"
PACKAGES = ("torch", "transformers", "accelerate", "lightning")


@dataclass(frozen=True)
class Case:
    """A program, and how many steps and backward passes each rank makes."""

    command: tuple[str, ...]
    steps: int
    micro_steps: int
    ranks: int = 1


TORCHRUN = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("--", sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1")
CASES = {
    "Hugging Face Trainer": Case(("hf_trainer.py",), 60, 120),
    "Hugging Face Trainer, 2 workers": Case(("hf_trainer.py", "2"), 60, 120),
    "Lightning": Case(("lightning_fit.py",), 64, 64),
    "Lightning, LBFGS": Case(("lightning_fit.py", "lbfgs"), 64, 256),
    "accelerate launch": Case((*ACCELERATE, "accelerated.py"), 96, 192),
    "FSDP2, torchrun, 2 ranks": Case((*TORCHRUN, "fsdp2.py"), 48, 48, ranks=2),
    "torch.compile": Case(("compiled.py",), 96, 96),
    "torch.compile, the optimizer too": Case(("compiled.py", "optimizer"), 96, 96),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only those whose name contains NAME")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chosen = [name for name in CASES if not args.names or any(part.lower() in name.lower() for part in args.names)]
    rows = {name: judged(CASES[name]) for name in chosen}
    width = max(map(len, chosen), default=0)
    for name, row in rows.items():
        print(f"{name:{width}}  {row['steps']:>4} steps  {row['verdict']:22}  {'; '.join(row['faults']) or 'ok'}")
    if args.json:
        args.json.write_text(json.dumps({**about(), "programs": rows}, indent=1) + "\n")
    return 1 if any(row["faults"] for row in rows.values()) else 0


def about() -> dict:
    """Return what these figures were taken with."""
    return {
        "schema": "paceline.benchmark.frameworks/1",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def version(name: str) -> str | None:
    """Return the version of a package, None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def judged(case: Case) -> dict:
    """Run a program bare and watched and compare."""
    bare, _ = finished(bare_command(case.command))
    watched, report = finished([sys.executable, "-m", "paceline", "run", "--json", "run.json", *placed(case.command)])
    faults = differences(bare, watched)
    if report is None:
        return {"steps": 0, "verdict": "no report", "faults": [*faults, watched.stderr[-300:]]}
    found, wanted = report["steps"], (case.steps, case.micro_steps)
    if (found["count"], found["micro_steps"]) != wanted or report["ranks"] != case.ranks:
        faults.append(f"{found['count']} steps, {found['micro_steps']} backwards, {report['ranks']} ranks of {case}")
    return {"steps": found["count"], "verdict": report["verdict"], "faults": faults}


def differences(bare: subprocess.CompletedProcess, watched: subprocess.CompletedProcess) -> list[str]:
    """Say what a program did otherwise for being watched."""
    faults = []
    if bare.returncode or watched.returncode != bare.returncode:
        faults.append(f"exit code {watched.returncode}, bare {bare.returncode}: {bare.stderr[-300:]}")
    if losses(bare) != losses(watched) or not losses(bare):
        faults.append("other losses")
    if "watching stopped" in watched.stderr:
        faults.append(next(line for line in watched.stderr.splitlines() if "watching stopped" in line))
    return faults


def losses(done: subprocess.CompletedProcess) -> list[str]:
    """Return the lines in which a program printed its losses, digit by digit."""
    return [line for line in done.stdout.splitlines() if line.startswith("losses")]


def bare_command(command: tuple[str, ...]) -> list[str]:
    """Return a command as it is run without Paceline."""
    return placed(command[1:]) if command[0] == "--" else [sys.executable, *placed(command)]


def placed(command: tuple[str, ...]) -> list[str]:
    """Return a command with the full path of its program."""
    return [str(PROGRAMS / part) if part.endswith(".py") else part for part in command]


def finished(command: list[str]) -> tuple[subprocess.CompletedProcess, dict | None]:
    """Run a command in a folder of its own; return how it ended, and the report if it wrote one."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        report = Path(folder) / "run.json"
        return done, json.loads(report.read_text()) if report.exists() else None


if __name__ == "__main__":
    sys.exit(main())
