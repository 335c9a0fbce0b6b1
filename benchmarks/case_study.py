"""The classic case: does an image run, whose device waits for augmentation on the CPU, end up busy by `tune` alone?

    python benchmarks/case_study.py [--budget 120] [--width 24] [--out FOLDER]

``case_study_programs/photos.py`` decodes, cuts and recolours JPEGs in the training process; its device (here the one
compute thread) is busy about 60% of the time. ``paceline tune`` is run on it, with nothing but a budget. Asked for: at
least 90% busy, and at least 30% off its time.

Busy is 1 - the share of data wait, as Paceline's own JSON says it before and after. Independently of Paceline's probes,
a clock on the lines that the program prints times the bare program and the program under the recipe, in turn, and the
losses of both are compared digit by digit. ``--width`` makes the network wider on machines that are faster at
multiplying than at decoding. Exit code: 0 when what was asked for holds, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from _clocked import RunFailed, bare, tuned, under
from _final import played
from _machine import about

from paceline.core.recipe import describe_recipe

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "case_study_programs" / "photos.py"
PHOTOS = HERE.parent / "examples" / "photos" / "make_photos.py"
SCHEMA = "paceline.benchmark.case-study/1"
ASKED = {"busy_after": 0.9, "time_off": 0.3}
_WARMUP, _STEPS, _ROUNDS = 20, 120, 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="of the search (120)")
    parser.add_argument("--width", type=int, default=30, help="channels of the first layer (30)")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"of the comparison ({_ROUNDS})")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the results (benchmarks/results)")
    options = parser.parse_args(arguments)
    photos = module_at(PHOTOS).make_photos()
    result = {"schema": SCHEMA, **about(("torch", "paceline", "pillow")), "width": options.width}
    with tempfile.TemporaryDirectory(prefix="case-study-") as folder:
        try:
            result |= studied(Path(folder), photos, options)
        except RunFailed as error:
            raise SystemExit(f"case study: {error}") from error
    result["passed"] = {name: result[name] >= least for name, least in ASKED.items()} | {"same": result["same_losses"]}
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"case-study-{result['date']}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join([*sentences(result), f"written: {file}"]))
    return 0 if all(result["passed"].values()) else 1


def module_at(path: Path) -> ModuleType:
    """Import a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def studied(folder: Path, photos: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Tune the program, and time it with and without the recipe.

    Raises:
        RunFailed: The program cannot be run.
    """
    program = [str(PROGRAM), "--data", str(photos), "--width", str(options.width)]
    found, tune_s = tuned(program, folder, options.budget, "exact")
    recipe, after = found["best"]["recipe"], found["after"] or found["baseline"]
    steps = ["--steps", _WARMUP + _STEPS]
    commands = {"before": bare(*program, *steps), "after": under(recipe, folder, *program, *steps)}
    runs = played(commands, options.rounds, folder)
    step_s = {name: [run.step_s(_WARMUP) for run in some] for name, some in runs.items()}
    off = [1 - after_s / before_s for before_s, after_s in zip(step_s["before"], step_s["after"])]
    return {
        "tune_s": tune_s,
        "recipe": recipe,
        "speedup": found["best"]["speedup"],
        "proof": found["best"]["checks"],
        "verdict_before": found["baseline"]["verdict"],
        "verdict_after": after["verdict"],
        "busy_before": 1 - found["baseline"]["phases"]["data_wait"]["share"],
        "busy_after": 1 - after["phases"]["data_wait"]["share"],
        "step_s": step_s,
        "time_off": statistics.median(off),
        "time_off_range": [min(off), max(off)],
        "same_losses": len({tuple(run.losses.items()) for some in runs.values() for run in some}) == 1,
    }


def sentences(result: dict[str, Any]) -> list[str]:
    """Return the result in words."""
    low, high = result["time_off_range"]
    before, after = (1e3 * statistics.median(result["step_s"][name]) for name in ("before", "after"))
    return [
        f"{result['device']}, load {result['load']:.1f} at the start",
        f"recipe after {result['tune_s']:.0f} s: {describe_recipe(result['recipe'])}",
        f"busy: {result['busy_before']:.0%} before ({result['verdict_before']}), {result['busy_after']:.0%} after "
        f"({result['verdict_after']}); {ASKED['busy_after']:.0%} were asked for",
        f"a step by the clock beside it: {before:.1f} ms bare, {after:.1f} ms under the recipe",
        f"time off: {result['time_off']:.0%} ({low:.0%} to {high:.0%}); {ASKED['time_off']:.0%} were asked for",
        f"losses: {'the same to the last digit' if result['same_losses'] else 'NOT the same'}",
    ]


if __name__ == "__main__":
    sys.exit(main())
