"""What do the figures of `tune.py` say? The four that were asked for, and a table with a row for each program."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.recipe import describe_recipe

ASKED = {"reached": 0.95, "cost": 0.25, "predicted": 0.8}
Row = Mapping[str, Any]


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """Return the asked figures over all programs, each with whether it is what was asked for.

    A kept change that nothing was predicted of counts as not predicted.
    """
    done = {name: row for name, row in rows.items() if "failed" not in row}
    kept = [one for row in done.values() for one in row["kept"]]
    inside = sum(one["inside"] is True for one in kept)
    broken = [name for name, row in done.items() if row["invariants"]["held"] is False]
    reached = {name: row["reached"]["median"] for name, row in done.items()}
    cost = {name: row["cost"] for name, row in done.items()}
    return {
        "programs": len(rows),
        "failed": sorted(rows.keys() - done.keys()),
        "below_reached": sorted(name for name, share in reached.items() if share < ASKED["reached"]),
        "reached_median": statistics.median(reached.values()) if reached else None,
        "above_cost": sorted(name for name, share in cost.items() if share > ASKED["cost"]),
        "cost_median": statistics.median(cost.values()) if cost else None,
        "broken": broken,
        "kept": len(kept),
        "inside": inside,
        "predicted_share": inside / len(kept) if kept else None,
    }


def passed(figures: Mapping[str, Any]) -> bool:
    """Say whether all that was asked for holds."""
    off = figures["failed"] or figures["below_reached"] or figures["above_cost"] or figures["broken"]
    share = figures["predicted_share"]
    return bool(figures["programs"]) and not off and (share is None or share >= ASKED["predicted"])


def sentences(figures: Mapping[str, Any]) -> list[str]:
    """Return the asked figures in words."""
    n = figures["programs"] - len(figures["failed"])
    share = figures["predicted_share"]
    found = [
        f"the recipe reaches at least {ASKED['reached']:.0%} of the grid's best on "
        f"{n - len(figures['below_reached'])} of {n} programs (median {percent(figures['reached_median'])})"
        + named(figures["below_reached"]),
        f"at no more than {ASKED['cost']:.0%} of the grid's cost on {n - len(figures['above_cost'])} of {n} "
        f"(median {percent(figures['cost_median'])})" + named(figures["above_cost"]),
        f"training is still the same on {n - len(figures['broken'])} of {n}" + named(figures["broken"]),
        f"{figures['inside']} of {figures['kept']} kept changes gained what was predicted ({percent(share)}; "
        f"{ASKED['predicted']:.0%} were asked for)",
    ]
    return [*found, f"failed: {', '.join(figures['failed'])}"] if figures["failed"] else found


def named(names: Sequence[str]) -> str:
    """Return the programs that fall short, to be put behind a sentence."""
    return f"; not {', '.join(names)}" if names else ""


def percent(share: float | None) -> str:
    """Print a share."""
    return "n/a" if share is None else f"{share:.0%}"


def markdown(result: Mapping[str, Any]) -> str:
    """Return the whole result for people."""
    rows: Mapping[str, Row] = result["programs"]
    about = (
        f"{result['date']}, {result['device']}, Python {result['python']}, "
        f"{', '.join(f'{name} {version}' for name, version in result['versions'].items() if version)}"
    )
    head = ["program", "grid's best", "tune", "reached", "cost", "same training", "predicted", "stolen cores"]
    others = any(row.get("train_doctor") for row in rows.values())
    table = [_cells(name, row, others) for name, row in rows.items()]
    lines = ["# `paceline tune` against an exhaustive grid", "", about, ""]
    lines += [f"- {text}" for text in sentences(summary(rows))]
    columns = [*head, *(["train-doctor"] if others else [])]
    lines += ["", _line(columns), _line(["---"] * len(columns)), *map(_line, table)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(name: str, row: Row, others: bool) -> list[str]:
    first = f"`{name}`: {row['bottleneck']}"
    if "failed" in row:
        return [first, row["failed"], *([""] * (7 if others else 6))]
    inside = sum(one["inside"] is True for one in row["kept"])
    found = [
        first,
        f"{factor(row['best_gain'])} of {len(row['grid']['cells'])} cells, {row['grid']['wall_s']:.0f} s: "
        f"{describe_recipe(row['grid']['best'])}",
        f"{factor(row['gain'])}, {row['tune']['wall_s']:.0f} s: {describe_recipe(row['tune']['recipe'])}",
        f"{row['reached']['median']:.0%} ({row['reached']['low']:.0%} to {row['reached']['high']:.0%})",
        percent(row["cost"]),
        f"{'yes' if row['invariants']['held'] else 'not proven' if row['invariants']['held'] is None else 'NO'} "
        f"({row['invariants']['class']})",
        f"{inside} of {len(row['kept'])}",
        f"{row['stolen_cores']:.2f}",
    ]
    return [*found, _other(row.get("train_doctor"))] if others else found


def _other(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "not run"
    speed = f"{factor(found['gain'])}, " if found.get("gain") else ""
    return f"{speed}{found['wall_s']:.0f} s: {found['said']}"


def factor(gain: Mapping[str, float]) -> str:
    """Print a factor with its range over rounds."""
    return f"{gain['median']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})"
