"""The scenarios on emulated GPUs expect messages that Paceline has."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = runpy.run_path(str(ROOT / "benchmarks" / "gpu_scenarios" / "_table.py"))["SCENARIOS"]


@pytest.fixture(scope="module")
def source() -> str:
    programs = (ROOT / "benchmarks" / "gpu_scenarios").glob("[!_]*.py")
    return "\n".join(file.read_text() for file in [*(ROOT / "src").rglob("*.py"), *programs])


@pytest.mark.parametrize("words", sorted({one.says for one in SCENARIOS.values() if one.says is not None}))
def test_an_expected_message_is_in_the_source(source, words):
    fixed = [part.strip() for part in re.split(r"\b\d+\b|: ", words) if len(part.strip()) > 2]
    assert fixed and [part for part in fixed if part not in source] == []
