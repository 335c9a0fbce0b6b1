"""What does watching cost a step of 5 ms of the GPU's? Runs in turn, with and without, by low percentiles of blocks."""

from __future__ import annotations

from typing import Any

from _watched import basics, figures_of, watched

LIMIT_S = 150
ROUNDS = 2
MOST_SHARE = 0.01


def check() -> dict[str, Any]:
    with watched("five_ms.py", "--steps", "400", watch=False, seconds=60) as first:
        layers = str(first.told.get("layers", 8))
    blocks: dict[bool, list[float]] = {True: [], False: []}
    answer: dict[str, Any] = {"figures": {}, "failed": [], "not_done": []}
    for _ in range(ROUNDS):
        for watch in (False, True):
            with watched("five_ms.py", "--layers", layers, watch=watch, seconds=60) as found:
                blocks[watch] += found.told.get("blocks_ms", [])
                if watch:
                    answer["figures"]["last_watched"] = figures_of(found)
                    answer["failed"] += basics(found, 1000)
    if not blocks[True] or not blocks[False]:
        answer["failed"].append("the program told no times")
        return answer
    bare, under = (low(blocks[False]), low(blocks[True]))
    answer["figures"] |= {"layers": layers, "bare_ms": bare, "watched_ms": under, "blocks": len(blocks[True])}
    answer["figures"]["cost_us_per_step"] = {at: (under[at] - bare[at]) * 1e3 for at in bare}
    share = (under["p10"] - bare["p10"]) / bare["p10"]
    answer["figures"]["cost_share_p10"] = share
    if share > MOST_SHARE:
        answer["failed"].append(f"watching makes a step of {bare['p10']:.2f} ms {share:.1%} longer")
    return answer


def low(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (5, 10, 25, 50)}
