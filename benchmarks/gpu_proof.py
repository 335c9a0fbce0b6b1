"""Check the claims about GPUs on a real GPU: one command, at most fifteen minutes, no network, one JSON.

    python benchmarks/gpu_proof.py [--out FOLDER] [--only NAME,NAME] [--checks FOLDER]
    python benchmarks/gpu_proof.py --judge FILE

Every file ``gpu_checks/NAME.py`` is a check: its ``check()`` returns a dict with ``figures`` (anything JSON holds),
``failed`` (sentences) and ``not_done`` (what could not be checked here, and why). Each runs in a process of its own,
with at most ``LIMIT_S`` seconds (a constant of the file; 90 without one). To extend the proof, add a file.
With ``--only``, checks of the same day and card that are already in the JSON stay in it.

Needs Python and torch; Paceline is taken from ``src/``. Findings need its dependencies too: where they are missing,
the records of the runs go into the JSON, and ``--judge FILE`` works them out on another machine.
Exit code: 0 all hold, 1 some do not, 2 there is no CUDA device.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
CHECKS = HERE / "gpu_checks"
RESULTS = HERE / "results"
SCHEMA = "paceline.gpu-proof/1"
WHOLE_S = 880.0  # of the fifteen minutes; the rest is for writing and for machines that start slowly
USUAL_LIMIT_S = 90.0

ABOUT = """
import json, platform, torch
known = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
known["available"] = torch.cuda.is_available()
if known["available"]:
    card = torch.cuda.get_device_properties(0)
    known |= {"device": card.name, "capability": f"{card.major}.{card.minor}", "memory_bytes": card.total_memory}
    known |= {"devices": torch.cuda.device_count(), "cores": __import__("os").cpu_count()}
print(json.dumps(known))
"""


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.check:
        return one_check(options.check, Path(options.checks), Path(options.out))
    if options.judge:
        return judge(Path(options.judge))
    about = describe()
    if not about.get("available"):
        print(f"gpu-proof: no CUDA device here ({about.get('why') or 'torch sees none'}); nothing was checked")
        return 2
    return prove(about, Path(options.checks), Path(options.out), options.only.split(",") if options.only else None)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", default=str(RESULTS), help="folder of the JSON (benchmarks/results)")
    found.add_argument("--checks", default=str(CHECKS), help="folder of the checks (benchmarks/gpu_checks)")
    found.add_argument("--only", help="names of checks, with commas")
    found.add_argument("--judge", metavar="FILE", help="work out the findings of a JSON that was written elsewhere")
    found.add_argument("--check", help=argparse.SUPPRESS)
    return found


def describe() -> dict[str, Any]:
    """Say what torch sees, in a process of its own: this one stays free of CUDA."""
    run = subprocess.run([sys.executable, "-c", ABOUT], capture_output=True, text=True, check=False)
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:] or ["python failed"]
        return {"available": False, "why": last[0]}
    return json.loads(run.stdout.strip().splitlines()[-1])


def prove(about: dict[str, Any], checks: Path, out: Path, only: list[str] | None) -> int:
    """Run the checks one after the other; the JSON is written anew after each, so that a cut leaves what there is."""
    begun = time.monotonic()
    date = time.strftime("%Y-%m-%d")
    path = out / f"gpu-proof-{slug(str(about.get('device')))}-{date}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["checks"] if only is not None and path.exists() else {}
    result = {"schema": SCHEMA, "date": date, **about, "seconds": 0.0, "checks": before}
    for file in sorted(checks.glob("[!_]*.py")):
        if only is not None and file.stem not in only:
            continue
        left = WHOLE_S - (time.monotonic() - begun)
        print(f"gpu-proof: {file.stem} …", end=" ", flush=True)
        result["checks"][file.stem] = found = run_check(file, left)
        print(f"{len(found['failed'])} failed, {len(found['not_done'])} not done, {found['seconds']:.0f} s", flush=True)
        result["seconds"] = round(time.monotonic() - begun, 1)
        write(path, result)
    return conclude(path, result)


def slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name).lower().split()) or "gpu"


def limit_of(file: Path) -> float:
    """Read ``LIMIT_S`` without running the file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LIMIT_S":
            return float(ast.literal_eval(node.value))
    return USUAL_LIMIT_S


def run_check(file: Path, left_s: float) -> dict[str, Any]:
    """Run one check in a process of its own and return what it says, or that it said nothing."""
    limit = min(limit_of(file), left_s)
    if limit < 5:
        return {"figures": {}, "failed": [], "not_done": ["no time was left"], "seconds": 0.0}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-proof-") as folder:
        answer = Path(folder) / "answer.json"  # a check that takes long may write it again and again
        command = [sys.executable, __file__, "--check", file.stem, "--checks", str(file.parent), "--out", str(answer)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), *extra_paths()])}
        said = call(command, environment, limit)
        found = json.loads(answer.read_text()) if answer.exists() else {"failed": [said or "it ended without a word"]}
        if said and answer.exists():
            found["not_done"] = [*found.get("not_done", []), said]
    empty: dict[str, Any] = {"figures": {}, "failed": [], "not_done": []}
    return {**empty, **found, "seconds": round(time.monotonic() - begun, 1)}


def call(command: list[str], environment: dict[str, str], limit_s: float) -> str:
    """Run a command with all it starts, at most so long; return why it failed, or nothing."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return f"it took longer than {limit_s:.0f} s and was ended"
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:]
    return "" if code == 0 else f"exit code {code}: {last[0] if last else 'no message'}"


def extra_paths() -> list[str]:
    """Return where nvidia-ml-py is, if only the checkout's environment has it (it is one file of plain Python)."""
    given = [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    if importlib.util.find_spec("pynvml") is not None:
        return given
    found = sorted((HERE.parent / ".venv" / "lib").glob("python*/site-packages/pynvml.py"))
    if not found:
        return given
    folder = Path(tempfile.gettempdir()) / f"gpu-proof-pynvml-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    (folder / "pynvml.py").write_bytes(found[-1].read_bytes())
    return [*given, str(folder)]


def one_check(name: str, checks: Path, answer: Path) -> int:
    """Run a check here, as the process that was started for it."""
    sys.path[:0] = [str(checks), str(HERE), str(SRC)]
    try:
        check = importlib.import_module(name).check
        found = check(lambda partial: write(answer, partial)) if check.__code__.co_argcount else check()
    except Exception as error:
        traceback.print_exc()
        found = {"failed": [f"the check itself failed: {type(error).__name__}: {error}"]}
    write(answer, found)
    return 0


def write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    text = json.dumps(record, indent=1, sort_keys=False).replace(f"{HERE.parent}/", "")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def conclude(path: Path, result: dict[str, Any]) -> int:
    """Gather what failed, write the JSON, and say it."""
    for kind in ("failed", "not_done"):
        result[kind] = [f"{name}: {text}" for name, found in result["checks"].items() for text in found[kind]]
    write(path, result)
    for text in result["failed"]:
        print(f"gpu-proof: FAILED {text}")
    for text in result["not_done"]:
        print(f"gpu-proof: not done: {text}")
    print(f"gpu-proof: {len(result['checks'])} checks, {len(result['failed'])} failed; {path}")
    return 1 if result["failed"] else 0


def judge(path: Path) -> int:
    """Work out the findings of the records in a JSON, and write the verdicts into it."""
    sys.path[:0] = [str(HERE), str(SRC)]
    from _watched import judge_record

    result = json.loads(path.read_text(encoding="utf-8"))
    for found in result["checks"].values():
        if found.get("record"):
            found.update(judge_record(found))
    return conclude(path, result)


if __name__ == "__main__":
    sys.exit(main())
