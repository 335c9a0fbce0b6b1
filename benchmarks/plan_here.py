"""How far off are predictions of this machine's own runs, after it was calibrated? Each is predicted, then run.

    python benchmarks/plan_here.py [--profile FILE] [--json FILE] [--only NAME]...

Two programs of examples/ at five sizes each, and one of each as two replicas; none of the sizes is one of the blocks of
the calibration. A run's steps are a median. A prediction is for the speed that the machine had just before the run; its
speed meanwhile is measured beside the steps by the profile's own reference, and both errors are printed: against the
steps as they were, and had the speed stayed the same. Where the reference wandered by more than a twentieth within a
run, the run is set aside, and said to be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from _machine import about

ROOT = Path(__file__).parents[1]
STEADY = 0.05  # half the distance between quartiles of the reference within a run
RUN_S, LEAST_STEPS, MOST_STEPS = 8.0, 28, 150


@dataclass(frozen=True, kw_only=True)
class Run:
    """A program, what it is given, and of how many ranks."""

    program: str
    flags: str
    batch: int
    ranks: int = 1

    @property
    def name(self) -> str:
        return f"{self.program} {self.flags} --batch-size {self.batch}" + f" x {self.ranks}" * (self.ranks > 1)


RUNS = (
    Run(program="gpt", flags="--width 64 --depth 4 --length 64", batch=16),
    Run(program="gpt", flags="--width 128 --depth 6 --length 128", batch=12),
    Run(program="gpt", flags="--width 192 --depth 4 --length 256", batch=8),
    Run(program="gpt", flags="--width 288 --depth 5 --length 192", batch=8),
    Run(program="gpt", flags="--width 448 --depth 6 --length 256", batch=8),
    Run(program="resnet", flags="--width 16 --depth 2 --size 64", batch=32),
    Run(program="resnet", flags="--width 16 --depth 3 --size 96", batch=16),
    Run(program="resnet", flags="--width 24 --depth 2 --size 64", batch=24),
    Run(program="resnet", flags="--width 32 --depth 2 --size 64", batch=32),
    Run(program="resnet", flags="--width 40 --depth 2 --size 80", batch=16),
    Run(program="gpt", flags="--width 192 --depth 4 --length 128", batch=8, ranks=2),
    Run(program="resnet", flags="--width 24 --depth 2 --size 64", batch=16, ranks=2),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Times in seconds, errors as fractions of what was measured."""

    run: str
    ranks: int
    steps: int
    predicted_s: float
    predicted_low_s: float
    predicted_high_s: float
    measured_s: float
    measured_low_s: float
    measured_high_s: float
    pace: float  # of the prediction: above 1 the machine was slower just before the run than in the profile
    changed: float  # the reference beside the steps over that just before them: above 1 the machine became slower
    wandered: float
    time_error: float
    time_error_at_same_speed: float
    predicted_bytes: float
    measured_bytes: float
    memory_error: float
    parts_s: dict[str, float]

    @property
    def kept(self) -> bool:
        return self.wandered <= STEADY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=Path, help="default: a calibration now")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--only", action="append", help="runs whose name has this in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        profile = options.profile or Path(scratch, "profile.json")
        if options.profile is None:
            subprocess.run([*paceline(), "plan", "--calibrate", "--out", profile], check=True, env=environment())
        results = []
        for run in RUNS:
            if not options.only or any(each in run.name for each in options.only):
                results.append(one(run, profile, Path(scratch)))
                print(told(results[-1]), flush=True)
        made = json.loads(profile.read_text())["made"]
    print("\n".join(summary(results)))
    if options.markdown:
        options.markdown.write_text("\n".join(table(results)) + "\n")
    if options.json:
        record = {**about(["torch", "paceline"]), "profile": made, "summary": list(summary(results))}
        record["runs"] = [asdict(each) | {"kept": each.kept} for each in results]
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def one(run: Run, profile: Path, scratch: Path) -> Result:
    flags, record = run.flags.split(), scratch / "predicted.json"
    program = str(ROOT / "examples" / f"{run.program}.py")
    line = [*paceline(), "plan", "--here", "--profile", profile, "--ranks", str(run.ranks), "--json", record]
    ran(*line, program, *flags, "--batch-size", str(run.batch))
    predicted = json.loads(record.read_text())
    steps = max(LEAST_STEPS, min(MOST_STEPS, round(RUN_S / predicted["step_s"])))
    batch = ["--batch-size", str(run.batch * run.ranks), "--steps", str(steps)]
    out = scratch / "measured.json"
    stepped = [str(ROOT / "benchmarks" / "_stepped.py"), str(out), program, *flags, *batch]
    if run.ranks == 1:
        ran(sys.executable, *stepped)
    else:
        many = [*("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(run.ranks)), *stepped]
        ran(sys.executable, *many, "--layout", f"dp={run.ranks}", OMP_NUM_THREADS="1")
    return compared(run, predicted, json.loads(Path(f"{out}.0").read_text()))


def compared(run: Run, predicted: dict, measured: dict) -> Result:
    reference = measured["reference_s"]
    low, usual, high = quantiles(reference, n=4)
    first, step_s, last = quantiles(measured["step_s"], n=4)
    changed = usual / predicted["reference_now_s"]
    return Result(
        run=run.name,
        ranks=run.ranks,
        steps=len(measured["step_s"]),
        predicted_s=predicted["step_s"],
        predicted_low_s=predicted["step_low_s"],
        predicted_high_s=predicted["step_high_s"],
        measured_s=step_s,
        measured_low_s=first,
        measured_high_s=last,
        pace=predicted["pace"],
        changed=changed,
        wandered=(high - low) / 2 / usual,
        time_error=predicted["step_s"] / step_s - 1,
        time_error_at_same_speed=predicted["step_s"] * changed / step_s - 1,
        predicted_bytes=predicted["memory_bytes"],
        measured_bytes=measured["peak_bytes"],
        memory_error=predicted["memory_bytes"] / measured["peak_bytes"] - 1,
        parts_s=predicted["step_parts_s"],
    )


def told(each: Result) -> str:
    aside = "" if each.kept else f"  set aside: the reference wandered by {each.wandered:.0%}"
    return (
        f"{each.run:58} step {1e3 * each.predicted_s:7.1f} / {1e3 * each.measured_s:7.1f} ms {each.time_error:+6.1%} "
        f"(at the same speed {each.time_error_at_same_speed:+6.1%}, pace {each.pace:.2f})  "
        f"memory {each.predicted_bytes / 2**20:5.0f} / {each.measured_bytes / 2**20:5.0f} MiB "
        f"{each.memory_error:+5.1%}{aside}"
    )


def table(results: list[Result]) -> Iterator[str]:
    yield "| run | step, predicted | measured (quartiles) | error | at one speed | memory, predicted | held | error |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for each in results:
        aside = "" if each.kept else " (set aside)"
        measured = (
            f"{1e3 * each.measured_s:.1f} ms ({1e3 * each.measured_low_s:.1f} to {1e3 * each.measured_high_s:.1f})"
        )
        yield (
            f"| `{each.run}` | {1e3 * each.predicted_s:.1f} ms | {measured} | {each.time_error:+.1%}{aside} | "
            f"{each.time_error_at_same_speed:+.1%} | {each.predicted_bytes / 2**20:.0f} MiB | "
            f"{each.measured_bytes / 2**20:.0f} MiB | {each.memory_error:+.1%} |"
        )


def summary(results: list[Result]) -> Iterator[str]:
    kept = [each for each in results if each.kept]
    yield f"{len(results)} runs, {len(results) - len(kept)} set aside"
    for name in ("time_error", "time_error_at_same_speed", "memory_error"):
        of = results if name == "memory_error" else kept
        sizes = sorted(abs(getattr(each, name)) for each in of)
        if sizes:
            within = sum(size <= (0.04 if name == "memory_error" else 0.08) for size in sizes)
            yield f"{name}: median {median(sizes):.1%}, worst {sizes[-1]:.1%}, {within} of {len(sizes)} as asked"


def paceline() -> list[str]:
    return [sys.executable, "-m", "paceline"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **more}


def ran(*command: object, **more: str) -> None:
    line = [str(word) for word in command]
    done = subprocess.run(line, env=environment(**more), capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)} ended with {done.returncode}: {done.stderr.strip()[-800:]}")


if __name__ == "__main__":
    main()
