"""Does the CUDA half do harm? Scenarios on emulated GPUs, each with and without Paceline, twice in a row.

    python benchmarks/gpu_emulated.py FOLDER [--only WORD,WORD] [--times 2] [--out FOLDER]

FOLDER is where an emulator of the CUDA driver was put, which is no part of Paceline. It must hold an executable
``fake``: ``fake COMMAND…`` runs a command with emulated devices and a CUDA build of torch as ``python``. The variable
``GPUS`` says how many devices there are, ``NCCLFAKE=1`` that NCCL is emulated too. In a forked child of a process that
began CUDA, calls must fail and write a line with "in a forked child" on stderr. Work must end by itself within 0.1 s,
without a wait of the host, and CUDA_VISIBLE_DEVICES must hide devices. The first scenario makes sure of these three.

Checked of each scenario: the exit code and the output are those of the program alone; as much memory of the devices
is in use at the end; no process is left; no exception, no warning of Paceline; no CUDA call in a forked child; the
record names the device and has no fault. Under a recipe, settings may keep up to 1 MiB. Values that
kernels compute are not checked: an emulated device computes none. Times, memory sizes of real cards, cuDNN, CUPTI and
compiled kernels are not proven either.
Exit code: 0 all hold, 1 some do not, 2 there is no emulator.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "gpu_scenarios"
SRC = HERE.parent / "src"
sys.path[:0] = [str(PROGRAMS), str(SRC)]

from _records import CHECKS  # noqa: E402
from _table import SCENARIOS, Scenario  # noqa: E402
from _tuned import TUNED, tune_faults  # noqa: E402

SCHEMA = "paceline.gpu-emulated/1"
LIMIT_S = 400.0
PINNED_BYTES = 64 << 10  # that the recorder may keep
RECIPE_BYTES = 1 << 20  # that the settings of a recipe may keep
REFUSED = "of the recipe had no effect"  # what `run` says of a setting; whether it may be refused is checked apart
NOISE = ("Traceback", "in a forked child", "paceline:", "terminate called", "Exception ignored", "leaked ", "Fatal")
CHAINED = (
    "\nThe above exception was the direct cause of the following exception:\n\nTraceback"  # torch has it by chance
)
NOT_PROVEN = [
    "numbers: kernels compute nothing, so losses and gradients are arbitrary",
    "times, speed-ups and the cost of watching",
    "sizes of memory on real cards, out-of-memory errors, expandable segments",
    "cuDNN, CUPTI (profiles of kernels), Triton, torch.compile, replays of CUDA graphs",
    "NCCL over real links, time-outs and errors of NCCL",
]
ABOUT = "import json, platform, torch; c = torch.cuda; print(json.dumps({'python': platform.python_version(), "
ABOUT += "'torch': torch.__version__, 'cuda': torch.version.cuda, 'available': c.is_available(), "
ABOUT += "'devices': c.device_count(), 'device': c.get_device_name(0)}))"
CONTROL = """
import os, torch
event = torch.cuda.Event(); event.record(); pid = os.fork()
if pid == 0:
    try:
        event.query()
    finally:
        os._exit(0)
os.waitpid(pid, 0)
"""
ENDS = "import time, torch; event = torch.cuda.Event(); event.record(); time.sleep(0.1); print('passed', event.query())"
HIDES = "import torch; print('sees', torch._C._cuda_getDeviceCount())"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    errors: str
    left: tuple[str, ...]  # processes that it left behind


class Emulator:
    """The folder with ``fake``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alone: dict[Any, Ended] = {}  # what programs did without Paceline
        self.locks: dict[Any, threading.Lock] = {}  # so that scenarios that share a program run it once

    def run(self, command: Iterable[str], place: Path, variables: Mapping[str, str]) -> Ended:
        """Run a command in a folder with emulated devices, with all it starts, for some minutes at most."""
        mark = uuid.uuid4().hex
        environment = {**os.environ, "FG": str(self.folder), "PACELINE_HISTORY": "off", "OMP_NUM_THREADS": "1"}
        given = os.environ.get("PYTHONPATH")
        environment |= {"PYTHONPATH": f"{SRC}{os.pathsep}{given}" if given else str(SRC), "SCENARIO": mark, **variables}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [str(self.folder / "fake"), *command],
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = 124
            left = left_processes(mark)
            if code == 124:
                end_processes(mark)
                process.wait()
            out.seek(0)
            errors.seek(0)
            return Ended(code=128 - code if code < 0 else code, out=out.read(), errors=errors.read(), left=tuple(left))


def processes_of(mark: str) -> list[int]:
    """Return the processes whose environment holds the mark."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and mark.encode() in Path("/proc", entry, "environ").read_bytes():
                found.append(int(entry))
        except OSError:
            continue
    return found


def left_processes(mark: str) -> list[str]:
    """Return what is left a moment later."""
    until = time.monotonic() + 5
    while (found := processes_of(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    return [f"process {pid}" for pid in found]


def end_processes(mark: str) -> None:
    for pid in processes_of(mark):
        try:
            os.kill(pid, 9)
        except OSError:
            continue


def command_of(scenario: Scenario, place: Path, *, watched: bool) -> list[str]:
    """Return the command of a scenario, with or without Paceline."""
    program = [str(PROGRAMS / scenario.program[0]), *scenario.program[1:]]
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(scenario.ranks)]
    if not watched or scenario.options is None:
        return [*torchrun, *program] if scenario.ranks else ["python", *program]
    options = ["--quiet", *scenario.options]
    if scenario.recipe is not None:
        (place / "recipe.toml").write_text(toml(scenario.recipe))
        options += ["--recipe", "recipe.toml"]
    ending = ["--", *torchrun, *program] if scenario.ranks else program
    return ["python", "-m", "paceline", "run", *options, *ending]


def toml(recipe: Mapping[str, Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for table, settings in recipe.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


def play(emulator: Emulator, scenario: Scenario) -> list[str]:
    """Run a scenario; return what is wrong."""
    bare = alone(emulator, scenario) if scenario.same and scenario.options is not None else None
    if bare is not None and bare.code != scenario.code:
        return [f"the program alone ended with {bare.code}, not {scenario.code}: {bare.errors[-300:]}"]
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(scenario, Path(folder), watched=True)
        found = emulator.run(command, Path(folder), variables_of(scenario))
        faults = differences(bare, found, scenario)
        if bare is not None:
            faults += memory_faults(bare, found, RECIPE_BYTES if scenario.recipe else 0)
        if scenario.options is not None and scenario.device is not None:
            faults += record_faults(Path(folder), scenario)
    return faults


def variables_of(scenario: Scenario) -> Mapping[str, str]:
    several = scenario.ranks or "--layout" in (scenario.options or ())
    return {**({"NCCLFAKE": "1"} if several else {}), **scenario.variables}


def alone(emulator: Emulator, scenario: Scenario) -> Ended:
    """Run the program of a scenario without Paceline, once for all scenarios that share it."""
    key = (scenario.program, scenario.ranks, tuple(scenario.variables.items()))
    with emulator.locks.setdefault(key, threading.Lock()):
        if key not in emulator.alone:
            with tempfile.TemporaryDirectory() as folder:
                command = command_of(scenario, Path(folder), watched=False)
                emulator.alone[key] = emulator.run(command, Path(folder), variables_of(scenario))
    return emulator.alone[key]


def differences(bare: Ended | None, found: Ended, scenario: Scenario) -> list[str]:
    """Return what a program did otherwise than alone, or otherwise than well if it was not run alone."""
    faults = [f"left behind: {one}" for one in found.left if bare is None or not bare.left]
    if found.code != scenario.code:
        last = " | ".join(found.errors.strip().splitlines()[-3:])
        faults.append(f"exit code {found.code}, not {scenario.code}: {last}")
    if scenario.says is not None:  # the error that is expected brings a traceback of torchrun
        return faults if scenario.says in found.errors else [*faults, f"not said: {scenario.says}"]
    off = [f"the setting {key} of the recipe was switched off" for key in scenario.may_refuse]
    alone = [] if bare is None else bare.errors.replace(CHAINED, "").splitlines()
    said = [
        line
        for line in found.errors.replace(CHAINED, "").splitlines()
        if not any(words in line for words in (REFUSED, *off))
    ]
    for word in NOISE:
        lines = [line for line in said if word in line]
        if len(lines) > sum(word in line for line in alone):
            faults.append(f"on stderr: {lines[0][:300]}")
    if bare is not None and lines_of(bare) != lines_of(found):
        faults.append(f"output {lines_of(found)[-6:]}, alone {lines_of(bare)[-6:]}")
    return faults


def lines_of(ended: Ended) -> list[str]:
    return [line for line in ended.out.splitlines() if not line.startswith("memory ")]


def memory_faults(bare: Ended, found: Ended, most: int) -> list[str]:
    """Return how much more memory is in use at the end than without Paceline."""
    faults = []
    for alone, watched in zip(memory_of(bare), memory_of(found)):
        if any(w > a + most for a, w in zip(alone["device"], watched["device"])):
            faults.append(f"{watched['device']} bytes of the devices are in use at the end, alone {alone['device']}")
        if watched["pinned"] > alone["pinned"] + PINNED_BYTES + most:
            faults.append(f"{watched['pinned']} bytes of pinned memory are in use at the end, alone {alone['pinned']}")
    return faults


def memory_of(ended: Ended) -> list[dict[str, Any]]:
    return [json.loads(line.partition(" ")[2]) for line in ended.out.splitlines() if line.startswith("memory ")]


def record_faults(place: Path, scenario: Scenario) -> list[str]:
    """Return what the record of a run says that it should not."""
    runs = sorted((place / ".paceline" / "runs").glob("*"))
    if len(runs) != 1:
        return [f"{len(runs)} runs were recorded"]
    metas = [json.loads(file.read_text()) for file in runs[0].glob("ranks/*/meta.json")]
    notes = [json.loads(line) for file in runs[0].glob("ranks/*/notes.jsonl") for line in file.open()]
    faults = [f"the record has a fault: {note}" for note in notes if note.get("kind") == "fault"]
    if (runs[0] / "warned").exists():
        faults.append("watching stopped")
    if not any(meta["device"] == scenario.device for meta in metas):
        faults.append(f"the record names {[meta['device'] for meta in metas]}, not {scenario.device}")
    faults += [fault for name in scenario.checks for fault in CHECKS[name](runs[0])]
    return faults + settings_faults(runs[0], scenario)


def settings_faults(run: Path, scenario: Scenario) -> list[str]:
    """Return the settings of the recipe that did not take hold, without a good reason."""
    entries = [json.loads(line) for file in run.glob("held/*.jsonl") for line in file.open()]
    asked = {f"{table}.{key}" for table, settings in (scenario.recipe or {}).items() for key in settings}
    held = {entry["key"] for entry in entries if entry["held"]}
    refused = {entry["key"]: entry["what"] for entry in entries if not entry["held"]}
    missing = asked - held - scenario.may_refuse
    return [f"{key} did not take hold: {refused.get(key, 'and no reason was given')}" for key in sorted(missing)]


def lacking(emulator: Emulator, scenario: Scenario) -> str | None:
    """Return a module that the scenario needs and the environment lacks."""
    for module in scenario.needs:
        if emulator.run(["python", "-c", f"import {module}"], HERE, {}).code:
            return module
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the emulator was put")
    parser.add_argument("--only", help="words of the names of scenarios, with commas")
    parser.add_argument("--times", type=int, default=2, help="how often each scenario is run (2)")
    parser.add_argument("--jobs", type=int, default=1, help="scenarios at a time (1)")
    parser.add_argument("--out", type=Path, help="folder of the JSON (default: none is written)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs would inherit that it is ignored, as of `&`
    if not os.access(options.folder / "fake", os.X_OK):
        print(f"gpu-emulated: there is no emulator in {options.folder} (no executable `fake`); nothing was checked")
        return 2
    emulator = Emulator(options.folder.resolve())
    about = emulator.run(["python", "-c", ABOUT], HERE, {})
    if about.code or not json.loads(about.out.splitlines()[-1])["available"]:
        print(f"gpu-emulated: torch sees no emulated device; nothing was checked\n{about.errors[-500:]}")
        return 2
    return judge(emulator, json.loads(about.out.splitlines()[-1]), options)


def judge(emulator: Emulator, about: dict[str, Any], options: argparse.Namespace) -> int:
    """Play the chosen scenarios. The result is written after each; other rows of the same day stay."""
    words = (options.only or "").split(",")
    names = [name for name in [*SCENARIOS, *TUNED] if any(word in name for word in words)]
    path = options.out / f"gpu-emulated-{time.strftime('%Y-%m-%d')}.json" if options.out else None
    rows: dict[str, Any] = json.loads(path.read_text())["scenarios"] if path is not None and path.exists() else {}
    rows["control: the emulator"] = {"faults": [emulator_faults(emulator)]}
    failed = write(path, about, rows)
    with ThreadPoolExecutor(options.jobs) as pool:
        asked = {pool.submit(played, emulator, name, options.times): name for name in names}
        for done in as_completed(asked):
            rows[asked[done]] = found = done.result()
            verdict = f"not done: {found['not_done']}" if "not_done" in found else told(found["faults"])
            print(f"{asked[done]:40} {verdict}", flush=True)
            failed = write(path, about, rows)
    print(f"gpu-emulated: {len(rows)} scenarios, {len(failed)} failed {failed}")
    return 1 if failed else 0


def emulator_faults(emulator: Emulator) -> list[str]:
    """Return what the emulator does not do, without which scenarios mean less."""
    forked, ended, hidden = (
        emulator.run(["python", "-c", program], HERE, variables)
        for program, variables in ((CONTROL, {}), (ENDS, {}), (HIDES, {"CUDA_VISIBLE_DEVICES": "1"}))
    )
    faults = [] if "in a forked child" in forked.errors else ["a CUDA call in a forked child goes unnoticed"]
    faults += [] if "passed True" in ended.out else ["work ends only when the host waits for it"]
    return faults + ([] if "sees 1" in hidden.out else ["CUDA_VISIBLE_DEVICES hides no device"])


def write(path: Path | None, about: dict[str, Any], rows: dict[str, Any]) -> list[str]:
    """Write the result; return the scenarios that failed."""
    failed = [name for name, row in rows.items() if any(row.get("faults", []))]
    missing = [name for name in [*SCENARIOS, *TUNED] if name not in rows]
    result = {"schema": SCHEMA, "date": time.strftime("%Y-%m-%d"), **about, "not_proven": NOT_PROVEN}
    result |= {"failed": failed, "not_run": missing, "scenarios": rows}
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    return failed


def played(emulator: Emulator, name: str, times: int) -> dict[str, Any]:
    """Play a scenario some times; the faults of each time."""
    if name in TUNED:
        return {"faults": [tune_faults(emulator, TUNED[name]) for _ in range(times)]}
    missing = lacking(emulator, SCENARIOS[name])
    if missing is not None:
        return {"not_done": f"it needs {missing}"}
    return {"faults": [play(emulator, SCENARIOS[name]) for _ in range(times)]}


def told(faults: list[list[str]]) -> str:
    return "; ".join(fault for one in faults for fault in one) or "ok"


if __name__ == "__main__":
    raise SystemExit(main())
