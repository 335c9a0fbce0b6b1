"""Do the readings of the driver make sense, and agree with nvidia-smi? The series is kept for the tests."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

from _watched import basics, figures_of, watched

LIMIT_S = 90
ASKED = {
    "uuid": "uuid",
    "name": "name",
    "memory.total": "memory_total_bytes",
    "power.default_limit": "power_limit_default_w",
    "clocks.max.sm": "sm_clock_max_mhz",
    "pcie.link.gen.max": "pcie_max_gen",
    "pcie.link.width.max": "pcie_max_width",
}


def check() -> dict[str, Any]:
    with watched("transformer.py", "--steps", "220", seconds=75) as found:
        answer: dict[str, Any] = {"figures": figures_of(found), "failed": basics(found, 100), "not_done": []}
    head = next((line for line in found.gauges if line["kind"] == "header"), {})
    cards, lines = head.get("gpus"), [line for line in found.gauges if line["kind"] == "host"]
    answer["figures"]["series"] = found.gauges  # a recorded series, as tests read it
    if not cards:
        why = head.get("unavailable", {}).get("gpus", "no header was written")
        answer["not_done"].append(f"the driver was not read: {why}")
        return answer
    readings = [gpu for line in lines for gpu in line["gpus"] or () if gpu["index"] == cards[0]["index"]]
    answer["figures"]["missing"] = head.get("unavailable")
    answer["failed"] += implausible(cards[0], readings, found.meta)
    answer["failed"] += against_smi(cards[0], answer)
    return answer


def implausible(card: dict[str, Any], readings: list[dict[str, Any]], meta: dict[str, Any]) -> list[str]:
    """Return what cannot be of a GPU that trains."""
    if len(readings) < 3:
        return [f"{len(readings)} readings were taken"]
    working = [r for r in readings if (r["utilization_gpu_percent"] or 0) >= 50]
    bounds = {
        "temperature_c": (15, 110),
        "power_w": (10, 1.25 * (card["power_limit_max_w"] or 2000)),
        "sm_clock_mhz": (100, 1.02 * (card["sm_clock_max_mhz"] or 4000)),
        "memory_used_bytes": (1 << 30, card["memory_total_bytes"]),
        "pcie_gen": (1, card["pcie_card_max_gen"] or 7),
        "pcie_width": (1, card["pcie_max_width"] or 32),
    }
    failed = [] if working else ["no reading shows the GPU at work"]
    for key, (low, high) in bounds.items():
        values = [r[key] for r in working if r.get(key) is not None]
        if not values:
            failed.append(f"{key} was never read")
        elif not all(low <= value <= high for value in values):
            failed.append(f"{key} is out of bounds: {min(values)} to {max(values)}, and {low} to {high} is possible")
    if meta.get("device_uuid") and meta["device_uuid"].lower() not in str(card["uuid"]).lower():
        failed.append(f"torch's UUID {meta['device_uuid']} is not the driver's {card['uuid']}")
    return failed


def against_smi(card: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    """Compare what does not change with nvidia-smi's word."""
    if shutil.which("nvidia-smi") is None:
        answer["not_done"].append("there is no nvidia-smi to compare with")
        return []
    command = ["nvidia-smi", f"--id={card['uuid']}", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if run.returncode:
        answer["not_done"].append(f"nvidia-smi failed: {run.stderr.strip()[:200] or run.stdout.strip()[:200]}")
        return []
    said = dict(zip(ASKED, [cell.strip() for cell in run.stdout.strip().splitlines()[0].split(",")]))
    answer["figures"]["nvidia_smi"] = said
    return [
        f"{ASKED[key]} is {card[ASKED[key]]}, nvidia-smi says {value}"
        for key, value in said.items()
        if not agree(key, value, card)
    ]


def agree(key: str, said: str, card: dict[str, Any]) -> bool:
    ours = card[ASKED[key]]
    try:
        number = float(said) * (2**20 if key == "memory.total" else 1)
    except ValueError:
        return key not in ("uuid", "name") or said == ours  # "[N/A]" is no word
    return ours is not None and abs(number - ours) <= 0.02 * max(abs(number), 1.0)
