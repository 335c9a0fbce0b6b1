"""The labelled programs: what is known of each, how one is run, and whether an answer agrees with what is known."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
LIMIT_S = 120
BUSY_CORES = 0.5


@dataclass(frozen=True, kw_only=True)
class Case:
    """One label; `labels.toml` explains the fields."""

    id: str
    group: str
    verdict: Sequence[str]
    note: str
    file: str = ""
    args: Sequence[str] = ()
    command: Sequence[str] = ("{python}", "{program}")
    must_find: Sequence[str] = ()
    must_propose: Sequence[str] = ()
    must_not_propose: Sequence[str] = ()
    not_exact: Sequence[str] = ()
    ranks: Sequence[int] = ()
    mentions: Sequence[str] = ()
    healthy: bool = False
    core: bool = False  # run by `make test`; the others by `make labelled`
    exit_code: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    neighbours: int = 0
    needs_idle: bool = False
    same_output: bool = False
    share: Mapping[str, float] = field(default_factory=dict)
    cure: Sequence[str] = ()
    cure_alone: bool = False
    cure_min: float = 1.0
    useless: Sequence[str] = ()
    metric: str = "step"

    @property
    def program(self) -> Path:
        return HERE / "programs" / f"{self.file or self.id}.py"

    def bare(self, *more: str, alone: bool = False) -> list[str]:
        """The command line as a user types it, without Paceline."""
        command = ("{python}", "{program}") if alone else self.command
        places = {"{python}": sys.executable, "{program}": str(self.program)}
        return [places.get(part, part) for part in command] + [*self.args, *more]

    def watched(self, json_file: Path) -> list[str]:
        """The same under ``paceline run``: the script itself, or any command line after ``--``."""
        bare = self.bare()
        program = bare[1:] if bare[1] == str(self.program) else ["--", *bare]
        return [sys.executable, "-m", "paceline", "run", "--json", str(json_file), *program]


def load() -> list[Case]:
    with open(HERE / "labels.toml", "rb") as f:
        return [Case(**entry) for entry in tomllib.load(f)["program"]]


# ---------------------------------------------------------------------------------------------- running


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run gave. ``neighbours`` is the number of cores that other processes took meanwhile."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    neighbours: float
    report: Mapping[str, Any] | None = None


def environment(case: Case) -> dict[str, str]:
    env = {**os.environ, **case.env}
    if find_spec("paceline") is None:  # not installed: take the tree beside us
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE), env.get("PYTHONPATH")]))
    return env


def run(case: Case, command: Sequence[str], folder: Path, extra_env: Mapping[str, str] | None = None) -> Outcome:
    """Run a command of a case in a folder, its neighbours beside it."""
    with busy_neighbours(case.neighbours):
        busy, own, start = busy_cpu_s(), children_cpu_s(), time.monotonic()
        done = subprocess.run(
            list(command),
            cwd=folder,
            env={**environment(case), **(extra_env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        seconds = time.monotonic() - start
        others = (busy_cpu_s() - busy - (children_cpu_s() - own)) / seconds
    return Outcome(
        code=done.returncode, stdout=done.stdout, stderr=done.stderr, seconds=seconds, neighbours=max(others, 0.0)
    )


def watch(case: Case, folder: Path) -> Outcome:
    """Run a case under Paceline and read the result it wrote."""
    json_file = folder / "out.json"
    outcome = run(case, case.watched(json_file), folder)
    report = json.loads(json_file.read_text()) if json_file.exists() else None
    return Outcome(**{**vars(outcome), "report": report})


@contextlib.contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Keep some processes busy that are no part of the watched program."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def busy_cpu_s() -> float:
    """CPU seconds that the whole machine has worked since it was started."""
    with open("/proc/stat") as f:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = (int(v) for v in f.readline().split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def wait_until_idle(limit_s: float, most_busy: float = 0.35) -> bool:
    """Wait until others use less than this many cores; say whether that came about in time."""
    deadline = time.monotonic() + limit_s
    while True:
        before, start = busy_cpu_s(), time.monotonic()
        time.sleep(0.5)
        if (busy_cpu_s() - before) / (time.monotonic() - start) < most_busy:
            return True
        if time.monotonic() > deadline:
            return False


# ---------------------------------------------------------------------------------------------- judging


def verdict(report: Mapping[str, Any] | None) -> str:
    return "no report" if report is None else report.get("verdict") or "none"


def codes(report: Mapping[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def remedies(report: Mapping[str, Any]) -> dict[str, list[str]]:
    """Ids of all proposed remedies with the safety classes they are proposed under."""
    found: dict[str, list[str]] = {}
    for finding in report["findings"]:
        for remedy in finding["remedies"]:
            found.setdefault(remedy["id"], []).append(remedy.get("safety", ""))
    return found


def called_exact(report: Mapping[str, Any]) -> set[str]:
    """Ids of the exact remedies, without `loader.workers` for one worker, which is always exact."""
    proposed = [remedy for finding in report["findings"] for remedy in finding["remedies"]]
    return {r["id"] for r in proposed if r.get("safety") == "exact" and "(num_workers=1)" not in r["change"]}


def acceptable(case: Case, outcome: Outcome) -> list[str]:
    """Return the verdicts to accept: beside measured neighbours, ``cpu-contended`` is true of a faultless program."""
    contended = outcome.neighbours >= BUSY_CORES and "compute-bound" in case.verdict
    return [*case.verdict, *(["cpu-contended"] if contended else [])]


def agrees(case: Case, outcome: Outcome) -> bool:
    """Whether the verdict is an acceptable one and the findings that have to be there are."""
    report = outcome.report
    return (
        report is not None
        and verdict(report) in acceptable(case, outcome)
        and set(case.must_find) <= set(codes(report))
    )


def broken_promises(case: Case, outcome: Outcome) -> list[str]:
    """What must hold for every single run, verdict aside, and does not."""
    wrong = []
    if outcome.code != case.exit_code:
        wrong.append(f"exit code {outcome.code}, the program's own is {case.exit_code}")
    if outcome.report is None:
        return [*wrong, "no JSON was written"]
    offered = remedies(outcome.report)
    wrong += [f"does not propose {r}" for r in case.must_propose if r not in offered]
    wrong += [f"proposes {r}, which does not help" for r in case.must_not_propose if r in offered]
    wrong += [f"calls {r} exact" for r in case.not_exact if r in called_exact(outcome.report)]
    if case.healthy:
        wrong += [f"finds {c} where data are never waited for" for c in codes(outcome.report) if c.startswith("DATA")]
    return wrong + _about_the_finding(case, outcome.report)


def _about_the_finding(case: Case, report: Mapping[str, Any]) -> list[str]:
    """Ranks and names in the finding the label asks for; its absence is the verdict's business."""
    finding = next((f for f in report["findings"] if f["code"] in case.must_find), None)
    if finding is None:
        return []
    wrong = []
    if case.ranks and list(finding["ranks"]) != list(case.ranks):
        wrong.append(f"names ranks {finding['ranks']}, not {list(case.ranks)}")
    if case.mentions and not any(word in json.dumps(finding) for word in case.mentions):
        wrong.append(f"mentions none of {', '.join(case.mentions)}")
    return wrong
