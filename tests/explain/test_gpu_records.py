"""Records of programs with one known fault that ran on real GPUs (benchmarks/gpu_proof.py): each fault is found."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from _watched import judge_record  # noqa: E402

ABOUT_COMPUTING = {"COMP001", "COMP002", "COMP003", "COMP004", "COMP005", "COMP006", "COMP007"}
MAY_SAY = {  # findings that are also true of a program
    "healthy": {"COMP001"},
    "launch_bound": {"COMP002", "COMP007"},
    "sync_stall": {"COMP003", "COMP004"},
    "precision_unused": {"COMP001", "COMP004"},
}
RECORDS = {
    f"{result['device']}, {name}": (name, check)
    for file in sorted((BENCHMARKS / "results").glob("gpu-proof-*.json"))
    for result in [json.loads(file.read_text())]
    for name, check in result["checks"].items()
    if check.get("record")
}


@pytest.fixture(scope="module", params=RECORDS, ids=str)
def judged(request):
    name, check = RECORDS[request.param]
    return name, check, judge_record({"failed": [], "expected": check["expected"], "record": check["record"]})


def test_the_fault_is_found(judged):
    assert judged[2]["failed"] == []


def test_nothing_else_is_said_of_computing(judged):
    name, _, found = judged
    assert {one["code"] for one in found["findings"]} & ABOUT_COMPUTING <= MAY_SAY.get(name, set())


def test_products_in_fp32_may_gain_what_tune_gained(judged):
    """On the H200, bf16 made the steps of this program 10.5 times as fast; the H100 has the same peak rates."""
    name, _, found = judged
    if name == "precision_unused":
        (gain,) = [one["gain"] for one in found["findings"] if one["code"] == "COMP004"]
        assert gain[1] > 9
