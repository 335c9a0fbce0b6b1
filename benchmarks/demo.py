"""How reliably does the search of the demo keep its win? The same search again and again, alone and beside a busy core.

    python benchmarks/demo.py                  # 10 searches, alone on the machine; about 20 minutes
    python benchmarks/demo.py --busy-cores 1   # beside a program that uses one core

Each search starts without earlier trials. The kept speed-up is the program's own result; no search is left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _machine import about

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "photos"
BUDGET = "90s"


def burn() -> None:
    while True:
        pass


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """Use so many cores, with one process each."""
    burning = [multiprocessing.Process(target=burn, daemon=True) for _ in range(cores)]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.join()


def search(folder: Path) -> dict[str, object]:
    """Search once; return what was kept, the speed-up and the time."""
    result = folder / "tune.json"
    options = ["--budget", BUDGET, "--recipe", str(folder / "recipe.toml"), "--json", str(result)]
    command = [sys.executable, "-m", "paceline", "tune", *options, "train.py"]
    begun = time.monotonic()
    done = subprocess.run(
        command,
        cwd=EXAMPLE,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(folder), "PACELINE_HISTORY": "off"},
    )
    seconds = time.monotonic() - begun
    if done.returncode:
        return {"kept": False, "error": done.stderr[-500:], "seconds": seconds}
    found = json.loads(result.read_text(encoding="utf-8"))["best"]
    return {
        "kept": bool(found["recipe"]),
        "recipe": found["recipe"],
        "speedup": found["speedup"],
        "checks_passed": all(check["passed"] for check in found["checks"]),
        "seconds": seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=10)
    parser.add_argument("--busy-cores", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    args = parser.parse_args()
    subprocess.run([sys.executable, str(EXAMPLE / "make_photos.py")], check=True, stdout=subprocess.DEVNULL)
    found = []
    with busy(args.busy_cores):
        for number in range(args.searches):
            with tempfile.TemporaryDirectory() as folder:
                found.append(search(Path(folder)))
            print(f"{number + 1}: {json.dumps(found[-1])}", flush=True)
    kept = sum(bool(one["kept"]) for one in found)
    print(f"kept in {kept} of {len(found)} searches, {args.busy_cores} other cores busy")
    if args.out:
        report = {**about(["torch"]), "busy_cores": args.busy_cores, "budget": BUDGET, "searches": found, "kept": kept}
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if kept == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
