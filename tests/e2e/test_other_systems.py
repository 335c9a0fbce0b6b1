"""The verbs that work on macOS and Windows, and what the others say there. What these systems lack is hidden.

Hidden from our own files: ``/proc``, ``/sys`` and modules. Hidden from all: functions that exist on Linux alone, and for
Windows those of POSIX. The files of these systems, their process tables and their signals are not tested.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import environment

SRC = Path(__file__).parents[2] / "src"

HIDES = '''
import builtins, io, multiprocessing, os, signal, sys

WINDOWS = os.environ["HIDDEN"] == "windows"
OURS = os.sep + "paceline" + os.sep

own_import = builtins.__import__

def imported(name, globals=None, *args, **kwargs):
    ours = OURS in ((globals or {}).get("__file__") or "")
    if ours and name in ("fcntl", "resource", "pwd", "grp", "termios", "pty"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return own_import(name, globals, *args, **kwargs)

def hidden(function):
    def call(path, *args, **kwargs):
        named = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if str(named).startswith(("/proc", "/sys")) and OURS in sys._getframe(1).f_code.co_filename:
            raise FileNotFoundError(2, "No such file or directory", named)
        return function(path, *args, **kwargs)
    return call

LINUX = """sched_getaffinity sched_setaffinity pidfd_open posix_fadvise memfd_create eventfd getrandom setns unshare
    copy_file_range"""
POSIX = """fork forkpty register_at_fork killpg getpgid setsid getuid geteuid getgid statvfs fstatvfs mkfifo
    wait3 wait4 waitid getpriority nice chown fchmod getloadavg sched_yield"""
SIGNALS = "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGSTOP SIGCONT SIGKILL SIGTSTP SIGCHLD SIGPIPE SIGALRM pthread_sigmask"

import subprocess, threading, tempfile, selectors, random, logging  # the real ones, as this system has them
for name in (LINUX + POSIX if WINDOWS else LINUX).split():
    if hasattr(os, name):
        delattr(os, name)
if WINDOWS:
    builtins.__import__ = imported
    for name in SIGNALS.split():
        if hasattr(signal, name):
            delattr(signal, name)
os.open, builtins.open, io.open = hidden(os.open), hidden(builtins.open), hidden(io.open)
os.listdir, os.scandir, os.stat, os.readlink = map(hidden, (os.listdir, os.scandir, os.stat, os.readlink))
multiprocessing.set_start_method("spawn")
'''

TRAINS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 320
    def __getitem__(self, index):
        return torch.full((16,), index / 320), index % 3

if __name__ == "__main__":
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        for inputs, target in DataLoader(Numbers(), batch_size=8, num_workers=1):
            loss = torch.nn.functional.cross_entropy(model(inputs), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print("trained", round(float(loss), 6))
    raise SystemExit(3)
"""


@pytest.fixture(scope="module", params=["macos", "windows"])
def there(request, tmp_path_factory):
    """Run a command as on another system."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "hides").mkdir()
    (folder / "hides" / "sitecustomize.py").write_text(HIDES)
    (folder / "train.py").write_text(TRAINS)

    def run(*command: str):
        variables = environment(PYTHONPATH=f"{folder / 'hides'}:{SRC}", HIDDEN=request.param, PACELINE_HISTORY="off")
        return subprocess.run(
            [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=200, env=variables
        )

    run.folder, run.name = folder, request.param
    return run


KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {"stream": 7}}
PLAN = [
    "plan",
    "--gpus",
    "8xH100-SXM",
    "--params",
    "8b",
    "--layers",
    "32",
    "--hidden",
    "4096",
    "--heads",
    "32",
    "--seq",
    "4096",
    "--batch",
    "64",
]


def test_run_and_report(there):
    """Torch itself cannot be imported where the functions that Windows lacks are hidden on Linux."""
    watched = there("-m", "paceline", "run", "--json", "run.json", "train.py")
    if there.name == "windows":
        assert (watched.returncode, watched.stdout) == (2, "")
        assert "paceline run does not work on Windows" in watched.stderr and "WSL 2" in watched.stderr
        return
    alone = there("train.py")
    assert (watched.returncode, watched.stdout) == (alone.returncode, alone.stdout)
    assert alone.returncode == 3 and "trained" in alone.stdout, alone.stderr
    assert "watching stopped" not in watched.stderr and "Traceback" not in watched.stderr, watched.stderr
    assert json.loads((there.folder / "run.json").read_text())["steps"]["count"] == 80
    report = there("-m", "paceline", "report")
    assert (report.returncode, "verdict" in report.stderr + report.stdout) == (0, True), report.stderr


def test_a_program_that_is_killed(there):
    (there.folder / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    done = there("-m", "paceline", "run", "killed.py")
    assert done.returncode == (2 if there.name == "windows" else 137), done.stderr
    assert "internal error" not in done.stderr


def test_plan_with_numbers_and_trace(there):
    done = there("-m", "paceline", *PLAN)
    assert (done.returncode, "internal error" in done.stderr) == (0, False), done.stderr
    (there.folder / "capture.json").write_text(json.dumps({"traceEvents": [KERNEL]}))
    done = there("-m", "paceline", "trace", "capture.json")
    assert (done.returncode, "gemm" in done.stdout + done.stderr) == (0, True), done.stderr


NEED = {"windows": "does not work on Windows", "macos": "needs Linux"}


@pytest.mark.parametrize("verb", [("tune", "train.py"), ("run", "--layout", "dp=2", "train.py")])
def test_verbs_that_need_linux_say_so(there, verb):
    done = there("-m", "paceline", *verb)
    assert (done.returncode, NEED[there.name] in done.stderr) == (2, True), done.stderr


def test_planning_for_a_program_needs_posix(there):
    done = there("-m", "paceline", "plan", "--gpus", "8xH100-SXM", "train.py")
    assert ("does not work on Windows" in done.stderr) == (there.name == "windows"), done.stderr
    assert "internal error" not in done.stderr


def test_files_that_run_as_scripts_need_no_package():
    """The launcher of `run --layout` and the reaper of processes start where the package cannot be imported."""
    for script in ("train/unmodified/ranks.py", "monitor/orphan_reaper.py"):
        source = f"import runpy; runpy.run_path({str(SRC / 'paceline' / script)!r}, run_name='looked_at')"
        done = subprocess.run([sys.executable, "-I", "-S", "-c", source], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
