"""Does a program find itself where it would have been without us? Arguments, streams, imports, exit codes."""

from __future__ import annotations

import json
import sys

import pytest
from tests.e2e.conftest import PROGRAMS, Result, bare, watched

SEES = """
import json, multiprocessing, os, sys, threading
import beside

def square(number):
    return number * number

if __name__ == "__main__":
    with multiprocessing.get_context(METHOD).Pool(2) as pool:
        squares = pool.map(square, range(5))
    print(json.dumps({
        "argv": sys.argv, "file": __file__, "name": __name__, "path": sys.path, "beside": beside.VALUE, "pool": squares,
        "stdin": sys.stdin.read(), "flags": list(sys.flags), "cwd": os.getcwd(), "package": __package__,
        "threads": threading.active_count(), "executable": sys.executable,
        "modules": sorted(m for m in sys.modules if m.split(".")[0] not in sys.stdlib_module_names),
        "environment": {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "_")},
        "finders": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
    }), flush=True)
    print("a word to stderr", file=sys.stderr)
    sys.exit(3)
"""


def seen(result: Result) -> dict:
    return json.loads(result.out)


def test_sitecustomize_of_the_user_runs_and_ours_leaves_no_trace(script, tmp_path):
    (tmp_path / "site").mkdir()
    script("import sys; sys.theirs = __name__, __file__", "site/sitecustomize.py")
    program = script(
        """
        import os, sys
        print(sys.theirs, sys.modules["sitecustomize"].__file__, sys.path[1], os.environ["PYTHONPATH"].split(":")[-1])
    """.replace("\n        ", "\n")
    )
    runs = [run([program], tmp_path, PYTHONPATH=str(tmp_path / "site")) for run in (bare, watched)]
    assert runs[0].out == runs[1].out != ""
    program.write_text("import sys; print('sitecustomize' in sys.modules, [p for p in sys.path if 'inject' in p])")
    assert watched([program], tmp_path).out == bare([program], tmp_path).out


@pytest.mark.parametrize("then, code", [("exit", 3), ("leave", 4)])
def test_the_exit_code_is_the_programs(tmp_path, then, code):
    result = watched([PROGRAMS / "endless.py", "--steps", "120", "--then", then], tmp_path)
    assert (result.code, result.theirs) == (code, [])
    assert result.diagnosis.exit_code == code
    assert str(code) in result.diagnosis.ended
    (rank,) = result.run.ranks
    assert len(rank.steps) == 120 if then == "exit" else len(rank.steps) > 0


def test_an_exception_that_nobody_catches_is_printed_as_ever(tmp_path):
    crash = [PROGRAMS / "endless.py", "--steps", "120", "--then", "crash"]
    without, with_us = bare(crash, tmp_path), watched(crash, tmp_path)
    assert with_us.code == without.code == 1
    assert with_us.theirs == without.err.splitlines() != []
    assert with_us.err.splitlines()[: len(with_us.theirs)] == with_us.theirs  # ours comes after
    assert "RuntimeError" in with_us.diagnosis.ended


def test_warnings_as_errors_from_the_first_moment(tmp_path):
    train = [PROGRAMS / "endless.py", "--steps", "120", "--workers", "1"]
    result = watched(["--", sys.executable, "-W", "error", *train], tmp_path)
    assert (result.code, result.theirs) == (0, [])
    assert len(result.run.ranks[0].steps) == 120


def test_switched_off_nothing_is_left_behind(script, tmp_path):
    program = script("import os, sys; print('PYTHONPATH' in os.environ, [m for m in sys.modules if 'paceline' in m])")
    result = watched([program], tmp_path, PACELINE_DISABLE="1")
    assert (result.code, result.out, result.err, result.folder) == (0, "False []\n", "", None)


@pytest.mark.parametrize("command, code", [(["/bin/sh", "-c", "cat; exit 5"], 5), (["sh", "-c", "kill -TERM $$"], 143)])
def test_any_command_can_be_run(tmp_path, command, code):
    result = watched(["--", *command], tmp_path, stdin="through")
    assert result.code == code
    assert result.out == ("through" if code == 5 else "")
    assert result.theirs == []
