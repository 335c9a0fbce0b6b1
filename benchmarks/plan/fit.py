"""Fit the constants of ``paceline plan`` to published rows, and measure them on sources that the fit has not seen.

    python benchmarks/plan/fit.py [ROWS.csv] [--check]

Without ``--check`` it writes src/paceline/plan/data/fitted.json; with it, it only says whether that file is what comes
out. Both print the errors of every source with the source left out of the fit (releases of one product together).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from paceline.plan.constants import Constants, Fitted
from paceline.plan.fit import fit
from paceline.plan.report import regime, validate
from paceline.plan.rows import Row, read_rows

ROWS = Path(__file__).parent / "published.csv"
FITTED = Path(__file__).parents[2] / "src/paceline/plan/data/fitted.json"
FAMILIES = ("Megatron-Bridge", "Megatron-LM SC21", "Korthikanti")  # one product or paper under several names
DIGITS = 6


def family(row: Row) -> str:
    return next((each for each in FAMILIES if each in row.source), row.source)


def held_out(rows: list[Row]) -> list[tuple[Row, float | None, float | None]]:
    """Every row with the logarithms of predicted over measured time and memory, by a fit without its source."""
    found = []
    for name in dict.fromkeys(map(family, rows)):
        seen = [row for row in rows if family(row) != name]
        constants = fit(seen)
        unseen = [row for row in rows if family(row) == name]
        report = validate(unseen, Fitted(constants=constants, time_spread={}, memory_spread=0.1))
        for source, errors in report.sources.items():
            print(line(source, errors.timed, errors.time_mdape, errors.time_p90, errors.memory_mdape, errors.order))
        for row, prediction in zip(report.rows, report.predictions):
            time = np.log(prediction.step_s / row.step_s) if prediction.step_s and row.step_s else None
            both = prediction.memory_bytes and row.memory_bytes
            found.append((row, time, np.log(prediction.memory_bytes / row.memory_bytes) if both else None))
    return found


def line(name: str, timed: int, *shares: float | None) -> str:
    shown = ["     n/a" if share is None else f"{share:8.1%}" for share in shares]
    return f"{name:46} {timed:4} {' '.join(shown)}"


def spreads(found: list[tuple[Row, float | None, float | None]]) -> tuple[dict[str, float], float]:
    """By regime what four in five errors of time stay below, and the standard deviation of those of memory."""
    by_regime: dict[str, list[float]] = {}
    for row, time, _ in found:
        if time is not None:
            by_regime.setdefault(regime(row), []).append(abs(time))
    memory = [error for _, _, error in found if error is not None]
    return {name: float(np.quantile(errors, 0.8)) for name, errors in by_regime.items()}, float(np.std(memory))


def rounded(constants: Constants) -> dict[str, float]:
    return {name: float(f"{value:.{DIGITS}g}") for name, value in asdict(constants).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?", default=ROWS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rows = read_rows(options.rows)
    print(f"{'source, left out of the fit':46} rows     time      p90   memory    order")
    time_spread, memory_spread = spreads(held_out(rows))
    values = {
        "constants": rounded(fit(rows)),
        "time_spread": {name: round(value, 3) for name, value in sorted(time_spread.items())},
        "memory_spread": round(memory_spread, 3),
    }
    text = json.dumps(values, indent=2) + "\n"
    if options.check:
        same = FITTED.read_text(encoding="utf-8") == text
        print("the file is what the rows give" if same else f"{FITTED} is not what the rows give")
        return 0 if same else 1
    FITTED.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
