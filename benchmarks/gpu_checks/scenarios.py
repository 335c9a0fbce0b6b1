"""Run the scenarios for one emulated device on a real GPU: outputs, ends, leaks and forks."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import gpu_emulated
from _table import SCENARIOS, Scenario

LIMIT_S = 200
LAST_S = 60  # longest time of a scenario
EMULATED = ("engine: torch cannot compile",)  # messages that only an emulated device causes
SEVERAL = ("second", "current", "both", "split")  # words of programs that use two devices


def check(told: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    names = [name for name, scenario in SCENARIOS.items() if for_one_device(name, scenario)]
    answer: dict[str, Any] = {"figures": {"held": []}, "failed": [], "not_done": []}
    until = time.monotonic() + min(LIMIT_S, float(os.environ.get("SCENARIOS_S", LIMIT_S))) - LAST_S
    with tempfile.TemporaryDirectory() as folder:
        runner = Path(folder) / "fake"
        runner.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} "$@"\n')  # every command begins with `python`
        runner.chmod(0o755)
        device = gpu_emulated.Emulator(Path(folder))
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 2)) as pool:
            asked = {pool.submit(played, device, SCENARIOS[name], until): name for name in names}
            for done in as_completed(asked):
                add(answer, asked[done], done.result())
                told(answer)
    return answer


def add(answer: dict[str, Any], name: str, found: list[str] | tuple[str]) -> None:
    if isinstance(found, tuple):
        answer["not_done"].append(f"{name}: {found[0]}")
    elif found:
        answer["failed"] += [f"{name}: {text}" for text in found]
    else:
        answer["figures"]["held"].append(name)


def for_one_device(name: str, scenario: Scenario) -> bool:
    several = scenario.ranks or "hidden.py" in scenario.program or any(word in scenario.program for word in SEVERAL)
    layout = "--layout" in (scenario.options or ())
    one = scenario.variables.get("GPUS", "1") == "1" and (not layout or "GPUS" in scenario.variables)
    return one and not several and name not in EMULATED


def played(device: Any, scenario: Scenario, until: float) -> list[str] | tuple[str]:
    """Return the faults of a scenario, or the reason why it was not run."""
    if time.monotonic() > until:
        return ("no time was left",)
    missing = gpu_emulated.lacking(device, scenario)
    return (f"{missing} is not installed",) if missing else gpu_emulated.play(device, scenario)
