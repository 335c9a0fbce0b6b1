"""The whole loop on one slow program: watch it, try the fixes, run with what helps, compare, and show the patch.

    make demo

Each command is printed before it runs, so that it can be typed by hand. The tutorial goes through the same commands.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path

from make_photos import make_photos

HERE = Path(__file__).parent
KEPT = Path(".cache/demo")  # of the recipe and the results
BUDGET = "90s"
PROGRAM = "train.py"


def paceline(*arguments, quiet=False):
    """Run a command and return its exit code and stdout; it is printed unless `quiet`."""
    if not quiet:
        print(f"\n$ {shlex.join(['paceline', *arguments])}", flush=True)
    command = [sys.executable, "-m", "paceline", *arguments]
    pipe = subprocess.PIPE if quiet else None
    done = subprocess.run(command, cwd=HERE, stdout=pipe, stderr=pipe, text=True, check=False)
    return done.returncode, done.stdout


def must(*arguments):
    """Run a command that has to succeed."""
    code, _ = paceline(*arguments)
    if code:
        sys.exit(f"\ndemo: this command ended with code {code}")


def summary(tuned, compared):
    """Say in one line what the recipe brought."""
    ratio = compared["time_ratio"]
    faster, low, high = (1 / ratio[end] for end in ("value", "high", "low"))
    proven = sum(check["passed"] for check in tuned["best"]["checks"])
    return (
        f"{faster:.1f} times faster (95% CI {low:.1f}–{high:.1f}), the same training ({proven} checks passed), "
        "here is the patch:"
    )


def main():
    print("Photographs:", make_photos(None))
    (HERE / KEPT).mkdir(parents=True, exist_ok=True)
    recipe, result = KEPT / "recipe.toml", KEPT / "tune.json"
    (HERE / recipe).unlink(missing_ok=True)
    must("run", PROGRAM)
    must("tune", "--budget", BUDGET, "--recipe", str(recipe), "--json", str(result), PROGRAM)
    if not (HERE / recipe).exists():
        sys.exit(
            "\ndemo: no change was proven to help. On a busy machine the comparison needs more time: "
            f"cd {HERE}; paceline tune {PROGRAM}"
        )
    must("run", "--recipe", str(recipe), PROGRAM)
    must("compare", "last~1", "last")
    _, compared = paceline("compare", "last~1", "last", "--json", "-", quiet=True)
    tuned = json.loads((HERE / result).read_text(encoding="utf-8"))
    print(f"\n{summary(tuned, json.loads(compared))}", flush=True)
    must("tune", "--diff", "--from", str(recipe), PROGRAM)


if __name__ == "__main__":
    main()
