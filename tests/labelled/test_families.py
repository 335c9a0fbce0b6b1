"""What counts as agreeing with a program that measured itself; with PACELINE_LABELLED=all, all such programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "measured"))

import families

ALL = families.members() if os.environ.get("PACELINE_LABELLED") == "all" else []


def report(verdict: str, steps: int = 10, severity: str = "warning", **shares: float) -> dict:
    phases = {part: {"share": shares.get(part, 0.0)} for part in families.VERDICTS}
    findings = [{"code": "X", "severity": severity}]
    return {"verdict": verdict, "steps": {"count": steps}, "phases": phases, "findings": findings}


def truth(**shares: float) -> dict:
    return {"steps": 10, "shares": shares}


@pytest.mark.parametrize(
    "measured, told, agrees",
    [
        (truth(data_wait=0.5), report("loader-serial", data_wait=0.45), True),
        (truth(data_wait=0.5), report("loader-serial", data_wait=0.2), False),
        (truth(data_wait=0.5), report("launch-bound", data_wait=0.5), False),
        (truth(data_wait=0.5), report("cpu-contended", data_wait=0.5), True),
        (truth(data_wait=0.1), report("balanced", data_wait=0.1), True),
        (truth(other=0.5), report("loader-serial", other=0.5), False),
        (truth(), report("compute-bound"), True),
        (truth(), report("compute-bound", severity="critical"), False),
        (truth(), report("throughput-drift"), False),
        (truth(), report("compute-bound", steps=11), False),
    ],
)
def test_what_agrees_with_a_measurement(measured, told, agrees):
    assert (families.wrong(measured, told) == []) == agrees


@pytest.mark.labelled
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("member", ALL, ids=lambda member: member.id)
def test_a_program_that_measures_itself(member, tmp_path):
    assert families.wrong(*families.run(member, tmp_path)) == []
