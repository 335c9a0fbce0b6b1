"""Look for the private names of torch, and run a few tests, in several versions of torch and Python.

    python tools/versions.py [--only 2.15] [--tests]

Each row of `ROWS` gets an environment of its own in ``.versions/`` (a CUDA build takes 5 GB). A Python that this
machine lacks is reported and left out. Exit code: 0 all hold, 1 some do not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = (
    ("2.11.0", "3.12"),
    ("2.12.1", "3.13"),
    ("2.13.0", "3.11"),
    ("2.14.1", "3.12"),
    ("2.15.0", "3.13"),
    ("2.15.0", "3.14"),
)
PACKAGES = (
    "numpy",
    "click",
    "isal",
    "msgspec",
    "nvidia-ml-py",
    "psutil",
    "rich",
    "pytest",
    "pytest-timeout",
    "hypothesis",
)
NAMES = """
import torch
from paceline.inprocess.recorder.torch_names import NAMES, missing
lost = {part: missing(part) for part in NAMES if missing(part)}
print("torch", torch.__version__, "lacks", lost or "nothing")
raise SystemExit(bool(lost))
"""
TESTS = (
    "tests/inprocess/recorder/test_torch_names.py",
    "tests/inprocess/recorder/device/test_cuda_forked.py",
    "tests/inprocess/recorder/profiler/test_window.py",
    "tests/inprocess/settings/test_device_prefetch.py",
    "tests/data/loader/test_prefetch.py",
    "tests/train/test_one_process.py",
)


def main() -> int:
    """Check the chosen rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the beginning of a version of torch")
    parser.add_argument("--tests", action="store_true", help="run some tests too, ten minutes for each row")
    options = parser.parse_args()
    return max([check(*row, tests=options.tests) for row in ROWS if row[0].startswith(options.only)], default=0)


def check(torch: str, python: str, *, tests: bool) -> int:
    """Check one row; return 1 if something fails."""
    found = interpreter(python)
    if found is None:
        print(f"torch {torch}, Python {python}: not done, this machine has no Python {python}", flush=True)
        return 0
    place = ROOT / ".versions" / f"torch-{torch}-python-{python}"
    own = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([found, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([own, "-m", "pip", "install", "-qq", f"torch=={torch}", *PACKAGES], check=True)
        (place / "ready").touch()
    print(f"torch {torch}, Python {python}:", end=" ", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    failed = subprocess.run([own, "-c", NAMES], env=environment, check=False).returncode
    if tests:
        failed |= subprocess.run([own, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env=environment, check=False).returncode
    return int(failed != 0)


def interpreter(version: str) -> str | None:
    """Return a Python of this version, also one that pyenv holds."""
    held = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for one in (*map(str, held[-1:]), shutil.which(f"python{version}"), sys.executable):
        if one and _is(one, version):
            return one
    return None


def _is(python: str, version: str) -> bool:
    asks = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", asks], capture_output=True, text=True, check=False).stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main())
