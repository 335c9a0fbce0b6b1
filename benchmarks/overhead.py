"""What does watching cost? Paired runs in turn: bare, watched by Paceline, and by TraceML where it is installed.

    python benchmarks/overhead.py [--rounds 5] [--traceml PYTHON] [--json FILE]

Main-thread CPU a step: in every run, blocks of steps are timed with the thread's own CPU clock; compared are low
percentiles of blocks over all rounds, because means drown in the noise of a shared machine. Fixed cost: wall and
CPU seconds of whole commands that train for a moment, in turn. Memory: what the training process holds more,
plus what `paceline` itself holds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PROGRAM = HERE / "overhead_program.py"
PLAN = {"step_1ms": (60, 50), "step_10ms": (40, 8), "submodules_200": (40, 6), "tiny": (60, 200)}
LIMITS = {"cpu_us": 12.0, "submodules_share": 0.01, "fixed_s": 1.5, "memory_mib": 60.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--traceml", help="a Python that has TraceML (pip install traceml-ai)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tools = ["bare", "paceline", *(["traceml"] if args.traceml else [])]
    result = {
        "schema": "paceline.benchmark.overhead/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {platform.processor() or platform.system()}",
        "python": platform.python_version(),
        "rounds": args.rounds,
        "steps": {case: steps(case, tools, args) for case in PLAN},
        "fixed": fixed(tools, args),
    }
    result["passed"] = report(result, tools)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if result["passed"] else 1


def command(tool: str, args: argparse.Namespace, case: str, blocks: int, count: int) -> list[str]:
    """Return the command line of one run."""
    rest = [case, str(blocks), str(count)]
    if tool == "bare":
        return [sys.executable, str(PROGRAM), *rest]
    if tool == "paceline":
        return [sys.executable, "-m", "paceline", "run", "-q", str(PROGRAM), *rest]
    traceml = [args.traceml, "-m", "traceml_ai", "run"] if not _script(args) else [_script(args), "run"]
    return [*traceml, str(PROGRAM), "--args", *rest, "--traceml"]


def _script(args: argparse.Namespace) -> str:
    beside = Path(args.traceml).parent / "traceml"
    return str(beside) if beside.exists() else ""


def once(tool: str, args: argparse.Namespace, case: str, blocks: int, count: int) -> dict:
    """Run one command in a folder of its own; return its figures, wall seconds and our own peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command(tool, args, case, blocks, count), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        parent_kib = 0
        while process.poll() is None:
            parent_kib = max(parent_kib, _peak_kib(process.pid))
            time.sleep(0.1)
        wall = time.perf_counter() - begun
        output = process.stdout.read().decode() if process.stdout else ""
    line = next((text for text in output.splitlines() if text.startswith('{"cpu_us"')), None)
    if line is None:
        raise SystemExit(f"{tool} printed no figures for {case} (exit code {process.returncode})")
    return {**json.loads(line), "command_s": wall, "parent_kib": parent_kib}


def _peak_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")), 0)


def steps(case: str, tools: list[str], args: argparse.Namespace) -> dict:
    """Measure one kind of step under every tool, in turn."""
    blocks, count = PLAN[case]
    runs: dict[str, list[dict]] = {tool: [] for tool in tools}
    for _ in range(args.rounds):
        for tool in tools:
            runs[tool].append(once(tool, args, case, blocks, count))
    found = {}
    for tool in tools:
        cpu = sorted(value for run in runs[tool] for value in run["cpu_us"][len(run["cpu_us"]) // 4 :])
        found[tool] = {
            "cpu_us_p5": cpu[len(cpu) // 20],
            "cpu_us_p10": cpu[len(cpu) // 10],
            "cpu_us_p25": cpu[len(cpu) // 4],
            "blocks": len(cpu),
            "peak_mib": statistics.median(run["peak_kib"] for run in runs[tool]) / 1024,
            "parent_mib": statistics.median(run["parent_kib"] for run in runs[tool]) / 1024,
        }
    return found


def fixed(tools: list[str], args: argparse.Namespace) -> dict:
    """Measure whole commands that train for a moment."""
    runs: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(max(3, args.rounds)):
        for tool in tools:
            runs[tool].append(once(tool, args, "tiny", 4, 50)["command_s"])
    return {tool: {"min_s": min(v), "median_s": statistics.median(v), "runs": len(v)} for tool, v in runs.items()}


def report(result: dict, tools: list[str]) -> bool:
    """Print the table; return whether every limit holds for Paceline."""
    print(f"{'main-thread CPU a step, µs (10th percentile)':46}" + "".join(f"{tool:>12}" for tool in tools))
    for case, found in result["steps"].items():
        print(f"{case:46}" + "".join(f"{found[tool]['cpu_us_p10']:12.1f}" for tool in tools))
        added = [found[tool]["cpu_us_p10"] - found["bare"]["cpu_us_p10"] for tool in tools]
        print(f"{'  more than bare':46}" + "".join(f"{value:12.1f}" for value in added))
    print(f"{'whole command, s (median)':46}" + "".join(f"{result['fixed'][t]['median_s']:12.2f}" for t in tools))
    checks = limits(result)
    for name, (value, limit) in checks.items():
        print(f"{name}: {value:.3g} (limit {limit:g}) {'ok' if value <= limit else 'TOO MUCH'}")
    return all(value <= limit for value, limit in checks.values())


def limits(result: dict) -> dict[str, tuple[float, float]]:
    """Return each limit's figure and bound."""
    found = {}
    for case, tools in result["steps"].items():
        if case != "submodules_200":
            added = tools["paceline"]["cpu_us_p10"] - tools["bare"]["cpu_us_p10"]
            found[f"{case}, µs CPU a step"] = (added, LIMITS["cpu_us"])
    sub = result["steps"]["submodules_200"]
    share = sub["paceline"]["cpu_us_p10"] / sub["bare"]["cpu_us_p10"] - 1
    found["submodules_200, share of CPU"] = (share, LIMITS["submodules_share"])
    fixed_s = result["fixed"]["paceline"]["median_s"] - result["fixed"]["bare"]["median_s"]
    found["fixed cost, s"] = (fixed_s, LIMITS["fixed_s"])
    tiny = result["steps"]["step_1ms"]
    memory = tiny["paceline"]["peak_mib"] - tiny["bare"]["peak_mib"] + tiny["paceline"]["parent_mib"]
    found["memory, MiB"] = (memory, LIMITS["memory_mib"])
    return found


if __name__ == "__main__":
    sys.exit(main())
