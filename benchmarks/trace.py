"""What do captures take to break down, in CPU time and memory, beside HolisticTraceAnalysis and beside decoding alone?

    python benchmarks/trace.py --hta PYTHON [--rounds N] [--captures FOLDER]

For each capture, in turn, each in a process of its own: **hta** loads it and makes its temporal breakdown, overlap and
kernel breakdown; **paceline** reads it and makes breakdown, causes of idle time, kernels and collectives; **floor**
unpacks it and decodes the fields that any reader needs. Imports are not counted: CPU seconds are of the process and its
children from the first byte on, and memory is the most that it held. Nor is counted that numpy's BLAS threads spin for
some ten milliseconds after they are started: all three wait, awake, for that to end. `PYTHON` has
HolisticTraceAnalysis 0.5.0 and pandas 2.3.

Asked for are a fifteenth of HTA's CPU time on captures of over 30 MB, a fortieth on eight small ranks, half its memory.

Then 125, 250, 500 and 1,000 ranks, made of the eight of dlrm by giving each a number of its own, are read on all cores:
time has to grow with their number, and memory must not.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _machine import about, stolen_s

RESULTS = Path(__file__).parent / "results"
SCHEMA = "paceline.benchmark.trace/1"
LARGE_BYTES = 30_000_000
COUNTS = (125, 250, 500, 1000)
ASKED = {"large": 15.0, "ranks": 40.0, "memory": 2.0}

_MEASURED = """
import gc, json, resource, sys, time
def cpu():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
def peak():
    # not ru_maxrss, which a process inherits from the one that started it
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
def begun():
    awake = time.perf_counter() + 0.2  # threads that imports started spin for a while; asleep, a core slows down
    while time.perf_counter() < awake:
        pass
    return cpu()
def done(began):
    readers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # forked from this one: a pool of HTA's
    print(json.dumps({"cpu_s": cpu() - began, "peak_bytes": peak() + readers}))
"""
PACELINE = (
    _MEASURED
    + """
from pathlib import Path
from paceline.traces.analyze.ranks import read_all
from paceline.traces.read.files import files_in
from paceline.traces.analyze.ranks import TraceOptions
began = begun()
read_all(files_in([Path(sys.argv[1])]), TraceOptions(), 1)
done(began)
"""
)
FLOOR = (
    _MEASURED
    + """
import zlib
from pathlib import Path
from paceline.traces.read.chrome_trace import decode
from paceline.traces.read.content import read_content
from paceline.traces.read.files import files_in
began = begun()
gc.disable()
for file in files_in([Path(sys.argv[1])]):
    decode(file, read_content(file).document)
done(began)
"""
)
MANY = (
    _MEASURED
    + """
from pathlib import Path
from paceline.traces.analyze.ranks import read_all
from paceline.traces.read.files import files_in
from paceline.traces.analyze.ranks import TraceOptions
if __name__ == "__main__":
    began = begun()
    started = time.perf_counter()
    traces = read_all(files_in([Path(sys.argv[1])]), TraceOptions())
    wall = time.perf_counter() - started
    assert len(traces.ranks) == int(sys.argv[2]), traces.problems
    readers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"wall_s": wall, "cpu_s": cpu() - began, "peak_bytes": peak(), "peak_reader_bytes": readers}))
"""
)
HTA = (
    _MEASURED
    + """
import logging, warnings
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
began = begun()
found = TraceAnalysis(trace_dir=sys.argv[1])
found.get_temporal_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
done(began)
"""
)


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    pythons = {"hta": options.hta, "paceline": sys.executable, "floor": sys.executable}
    scripts = {"hta": HTA, "paceline": PACELINE, "floor": FLOOR}
    result: dict[str, Any] = {"schema": SCHEMA, **about(("paceline", "msgspec", "numpy")), "rounds": options.rounds}
    result["hta"] = version_of(options.hta)
    begun, result["captures"] = stolen_s(), {}
    with tempfile.TemporaryDirectory(prefix="trace-benchmark-") as place:
        for name, folder, size in captures(options.captures, Path(place)):
            runs: dict[str, list[dict[str, float]]] = {tool: [] for tool in scripts}
            for number in range(options.rounds):
                for tool in list(scripts)[number % 3 :] + list(scripts)[: number % 3]:
                    runs[tool].append(measured(pythons[tool], scripts[tool], folder))
            result["captures"][name] = {"ranks": len(list(folder.iterdir())), **row(size, runs)}
            print(f"{name}: {said(result['captures'][name])}", flush=True)
        result["many"] = many(options.captures / "dlrm8", Path(place))
    result["stolen_s"] = stolen_s() - begun
    file = options.out / f"trace-{result['date']}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {file}")
    return 0 if all(passed(one) for one in result["captures"].values()) else 1


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--hta", required=True, metavar="PYTHON", help="a Python that has HolisticTraceAnalysis")
    found.add_argument("--rounds", type=int, default=5)
    here = Path(__file__).parents[2] / "shared" / "traces"
    found.add_argument("--captures", type=Path, default=here, help="folder of captures (../shared/traces)")
    found.add_argument("--out", type=Path, default=RESULTS)
    return found


def captures(folder: Path, place: Path) -> list[tuple[str, Path, int]]:
    """Return name, folder and unpacked bytes of each capture, or set of ranks; each lies in a folder of its own."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and any(path.glob("rank*.json")):
            found.append((path.name, path, sum(file.stat().st_size for file in path.glob("rank*.json"))))
        elif path.name.endswith(".json.gz"):
            own = place / path.name.removesuffix(".json.gz")
            own.mkdir()
            (own / path.name).symlink_to(path.resolve())
            found.append((own.name, own, len(gzip.decompress(path.read_bytes()))))
    return found


def many(source: Path, place: Path) -> list[dict[str, Any]]:
    """Read more and more ranks, each copy of a real one with a number of its own."""
    texts = [path.read_text() for path in sorted(source.glob("rank*.json"))]
    script = place / "many.py"  # a file: processes that read side by side begin by importing it
    script.write_text(MANY)
    folder, found = place / "many", []
    folder.mkdir()
    for count in COUNTS:
        for number in range(len(list(folder.iterdir())), count):
            text = texts[number % len(texts)].replace(f'"rank": {number % len(texts)}', f'"rank": {number}')
            (folder / f"rank{number}.json.gz").write_bytes(gzip.compress(text.encode(), 1))
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(count)],
            capture_output=True,
            text=True,
            timeout=900,
            check=True,
        )
        found.append({"ranks": count, **json.loads(done.stdout.splitlines()[-1])})
        one = found[-1]
        peaks = f"{one['peak_bytes'] / 1e6:.0f} MB, {one['peak_reader_bytes'] / 1e6:.0f} MB a reader"
        print(f"{count} ranks: {one['wall_s']:.1f} s, {one['cpu_s']:.1f} s of CPU, {peaks}", flush=True)
    return found


def measured(python: str, script: str, folder: Path) -> dict[str, float]:
    """Run a script on a folder; a tool that fails has no figures."""
    command = [python, "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        return {"failed": 1.0}
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def version_of(python: str) -> str:
    """Return the version of HolisticTraceAnalysis that an interpreter has."""
    script = "import importlib.metadata as m; print(m.version('HolisticTraceAnalysis'), 'pandas', m.version('pandas'))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def row(size: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return medians, and how many times less CPU and memory it takes than HTA, in pairs of one round."""
    found: dict[str, Any] = {"bytes": size, "runs": runs}
    for key in ("cpu_s", "peak_bytes"):
        found[key] = {
            tool: statistics.median(one[key] for one in some) if all(key in one for one in some) else None
            for tool, some in runs.items()
        }
    for key, name in (("cpu_s", "less_cpu"), ("peak_bytes", "less_memory")):
        found[name] = in_pairs(runs["hta"], runs["paceline"], key)
    found["floor_share"] = in_pairs(runs["floor"], runs["paceline"], "cpu_s")
    return found


def in_pairs(ones: list[dict[str, float]], others: list[dict[str, float]], key: str) -> float | None:
    """Return how many times as much the ones take, as the median over rounds; None where one of them failed.

    Both of a round ran within a minute, at about the same speed of the machine.
    """
    if not all(key in one for one in [*ones, *others]):
        return None
    return statistics.median(one[key] / other[key] for one, other in zip(ones, others, strict=True))


def said(one: dict[str, Any]) -> str:
    """Say a row in words."""
    own = f"{one['cpu_s']['paceline']:.3f} s of CPU, {one['peak_bytes']['paceline'] / 1e6:.0f} MB"
    if one["less_cpu"] is None:
        return f"{own}; HTA failed"
    less = f"{one['less_cpu']:.1f} times less CPU and {one['less_memory']:.1f} times less memory than HTA"
    return f"{own}: {less}; {one['floor_share']:.0%} of it decodes"


def passed(one: dict[str, Any]) -> bool:
    """Say whether a row has what was asked for; small captures of one rank have no figure to reach."""
    if one["less_cpu"] is None:
        return True
    asked = ASKED["ranks"] if one["ranks"] > 1 else ASKED["large"] if one["bytes"] > LARGE_BYTES else 1.0
    return one["less_cpu"] >= asked and one["less_memory"] >= ASKED["memory"]


if __name__ == "__main__":
    sys.exit(main())
