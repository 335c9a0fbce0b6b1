"""Compare the memory and the step time that `plan` predicts for this GPU with measurements."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

LIMIT_S = 150
PROGRAM = Path(__file__).resolve().parents[1] / "gpu_programs" / "llama.py"
CARDS = {"H100 80GB HBM3": "H100-SXM", "H200": "H200-SXM"}
CASES = {
    "220 million, fp32 weights": ("--width", "1024", "--depth", "12", "--length", "1024", "--batch", "8"),
    "220 million, short": ("--width", "1024", "--depth", "12", "--length", "256", "--batch", "8"),
    "0.8 billion, bf16 weights": (
        *("--width", "2048", "--depth", "12", "--length", "2048", "--batch", "4"),
        *("--weights", "bf16"),
    ),
    "0.8 billion, fp32 weights": ("--width", "2048", "--depth", "12", "--length", "1024", "--batch", "8"),
}
MEMORY, TIME = 0.10, 0.25  # largest errors
PAIRS = {  # what the program tells: what the plan calls it
    "step_s": "step_s",
    "smi_bytes": "memory_bytes",
    "allocated_bytes": "allocated_bytes",
    "reserved_bytes": "reserved_bytes",
}


def check() -> dict[str, Any]:
    answer: dict[str, Any] = {"figures": {}, "failed": [], "not_done": []}
    card = next((ours for name, ours in CARDS.items() if name in torch.cuda.get_device_name(0)), None)
    if card is None:
        answer["not_done"].append(f"the card {torch.cuda.get_device_name(0)} is not in the table of this check")
        return answer
    with ThreadPoolExecutor() as pool:
        plans = list(pool.map(planned, [card] * len(CASES), CASES.values()))
    for (name, arguments), plan in zip(CASES.items(), plans, strict=True):
        found = answer["figures"][name] = compared(plan, arguments)
        answer["failed"] += [f"{name}: {text}" for text in faults(found)]
    return answer


def planned(card: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return the prediction for the program without recomputation, or {"error": ...}."""
    batch = arguments[arguments.index("--batch") + 1]
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "paceline", "plan", "--gpus", f"1x{card}", "--eager", "--layout", "dp=1"]
        command += ["--micro-batch", batch, "--batch", batch, "--json", "plan.json", str(PROGRAM), *arguments]
        ended = subprocess.run([*command, "--device", "cpu"], capture_output=True, text=True, cwd=place, check=False)
        file = Path(place) / "plan.json"
        plans = json.loads(file.read_text())["plans"] if file.exists() else []
    kept = [plan for plan in plans if plan["recompute"] == "none"]
    return kept[0] if kept else {"error": ended.stderr.strip()[-300:] or "there is no plan without recomputation"}


def compared(plan: dict[str, Any], arguments: tuple[str, ...]) -> dict[str, Any]:
    if "error" in plan:
        return plan
    run = subprocess.run([sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False)
    if run.returncode:
        return {"error": run.stderr.strip()[-300:]}
    told = json.loads(run.stdout.strip().splitlines()[-1])
    errors = {ours: plan[key] / told[ours] - 1 for ours, key in PAIRS.items() if told.get(ours)}
    return {"measured": told, "predicted": {ours: plan[key] for ours, key in PAIRS.items()}, "error": errors}


def faults(found: dict[str, Any]) -> list[str]:
    if isinstance(found["error"], str):
        return [found["error"]]
    limits = {"step_s": TIME, "smi_bytes": MEMORY, "allocated_bytes": MEMORY, "reserved_bytes": MEMORY}
    return [
        f"{key} was predicted {error:+.1%} off" for key, error in found["error"].items() if abs(error) > limits[key]
    ]
