"""Does Paceline name the known bottleneck of each program, without touching the program?

One program at a time, whatever the number of test processes: these are timings. Two kinds of demand:
what has to hold in every run (exit code, remedies that must or must not be proposed, no data finding on healthy
programs) fails the test of that program; the verdicts are counted, and 95% of them have to be right.

`make test` runs the core of them, some minutes; `make labelled` (PACELINE_LABELLED=all) runs them all.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from tests.labelled import cases

ALL = cases.load()
CASES = ALL if os.environ.get("PACELINE_LABELLED") == "all" else [case for case in ALL if case.core]
LEAST_RIGHT = 0.95 if len(CASES) == len(ALL) else 0.9  # of the core, one may be wrong

pytestmark = [pytest.mark.labelled, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="session")
def answers():
    """Verdicts of this session: id to (case, verdict, whether it agrees)."""
    return {}


@pytest.fixture(scope="session")
def outcomes():
    """What the programs gave under Paceline in this session, by id."""
    return {}


@pytest.fixture(autouse=True)
def alone_on_the_machine():
    """Other test processes wait; other programs are given some time to finish."""
    with open(Path(tempfile.gettempdir()) / "paceline-labelled.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cases.wait_until_idle(10)
        yield


def test_every_program_has_a_label():
    files = {path.stem for path in (cases.HERE / "programs").glob("*.py")}
    assert files == {case.file or case.id for case in ALL}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_program(case, tmp_path, answers, outcomes):
    if case.needs_idle and not cases.wait_until_idle(60):
        pytest.skip("true only where a core is free, and other programs hold them")
    outcome = outcomes[case.id] = cases.watch(case, tmp_path)
    answers[case.id] = (case, cases.verdict(outcome.report), cases.agrees(case, outcome))
    assert cases.broken_promises(case, outcome) == [], outcome.stderr[-2000:]


@pytest.mark.parametrize("case", [case for case in CASES if case.same_output], ids=lambda case: case.id)
def test_output_is_the_programs_own(case, tmp_path, outcomes):
    bare, watched = cases.run(case, case.bare(), tmp_path), outcomes.get(case.id) or cases.watch(case, tmp_path)
    assert watched.code == bare.code
    assert watched.stdout == bare.stdout
    assert bare.stderr in watched.stderr


def test_verdicts_are_right(answers):
    if len(answers) < len(CASES) - sum(case.needs_idle for case in CASES):
        pytest.skip(f"only {len(answers)} of {len(CASES)} programs were run")
    misses = [f"{case.id}: expected {case.verdict[0]}, got {got}" for case, got, right in answers.values() if not right]
    right = len(answers) - len(misses)
    print(f"\n{right} of {len(answers)} verdicts right", *misses, sep="\n  ")
    assert right / len(answers) >= LEAST_RIGHT, "\n".join(misses)
