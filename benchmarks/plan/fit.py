"""Fit the constants of ``paceline plan`` to published rows, and measure them on sources that the fit has not seen.

    python benchmarks/plan/fit.py [ROWS.csv] [--check]

Without ``--check`` it writes src/paceline/plan/data/fitted.json; with it, it only says whether that file is what comes
out. Both print the errors of every source with the source left out of the fit (releases of one product together).

The fit is least squares on the logarithm of predicted over measured, drawn to the prior. Each source has the weight of
the square root of its rows. Residuals beyond a fifth count linearly (Huber), since published rows contain mistakes. The
steps are Gauss-Newton with Levenberg's damping and numerical derivatives.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.plan.cost.columns import Floats
from paceline.plan.cost.constants import PRIOR, Constants, Fitted, prior, read
from paceline.plan.validate.accuracy import regime, validate
from paceline.plan.validate.prediction import Prepared, memory_bytes, prepare, step_seconds
from paceline.plan.validate.published_rows import PublishedRow, read_rows

ROWS = Path(__file__).parent / "published.csv"
FITTED = Path(__file__).parents[2] / "src/paceline/plan/data/fitted.json"
FAMILIES = ("Megatron-Bridge", "Megatron-LM SC21", "Korthikanti")  # one product or paper under several names
FEW, LEAST_OF_FEW = 10, 0.25
DIGITS = 6
_LINEAR_BEYOND = 0.2
_ROUNDS = 30
_NOISE = 0.08  # what one row scatters where the model is right: weighs rows against the prior
TIME = tuple(name for name in PRIOR if name not in ("activation", "logits_bytes", "reserved", "context", "workspace"))
MEMORY = ("activation", "logits_bytes", "reserved", "context", "workspace")


def fit(rows: Sequence[PublishedRow]) -> Constants:
    """Return the constants that suit the rows best; time and memory share none and are fitted apart."""
    found = prior()
    timed = [row for row in rows if row.cases and row.step_s]
    if timed:
        found = _fitted(found, TIME, timed, step_seconds, np.array([row.step_s or 0.0 for row in timed]))
    kept = [row for row in rows if row.cases and row.memory_bytes]
    if kept:
        found = _fitted(found, MEMORY, kept, memory_bytes, np.array([row.memory_bytes or 0.0 for row in kept]))
    return found


def _fitted(
    start: Constants,
    names: Sequence[str],
    rows: Sequence[PublishedRow],
    predicted: Callable[[Prepared, Constants], Floats],
    measured: Floats,
) -> Constants:
    prepared = prepare(rows)
    weights = _weights(rows)
    base = asdict(start)
    centre = np.log([PRIOR[name][0] for name in names])
    spread = np.array([PRIOR[name][1] for name in names])

    def residuals(x: Floats) -> Floats:
        values = read({**base, **dict(zip(names, np.exp(x), strict=True))})
        return np.log(predicted(prepared, values) / measured)

    x = _descend(residuals, centre, spread, weights)
    return read({**base, **dict(zip(names, np.exp(x).tolist(), strict=True))})


def _weights(rows: Sequence[PublishedRow]) -> Floats:
    counts = Counter(row.source for row in rows)
    return np.array([counts[row.source] ** -0.25 for row in rows]) / _NOISE


def _descend(residuals: Callable[[Floats], Floats], centre: Floats, spread: Floats, weights: Floats) -> Floats:
    x, damping = centre.copy(), 1.0
    best = _loss(residuals(x), x, centre, spread, weights)
    for _ in range(_ROUNDS):
        r = residuals(x)
        soft = weights * np.sqrt(np.minimum(1.0, _LINEAR_BEYOND / np.maximum(np.abs(r), 1e-9)))
        slopes = _slopes(residuals, x, r)
        a = (slopes * soft[:, None]).T @ (slopes * soft[:, None]) + np.diag(spread**-2)
        b = (slopes * soft[:, None]).T @ (r * soft) + (x - centre) / spread**2
        tried = x - np.linalg.solve(a + damping * np.diag(np.diag(a)), b)
        loss = _loss(residuals(tried), tried, centre, spread, weights)
        if loss < best:
            done = best - loss < 1e-4 * best
            x, best, damping = tried, loss, damping / 4
            if done:
                break
        else:
            damping *= 4
    return x


def _loss(r: Floats, x: Floats, centre: Floats, spread: Floats, weights: Floats) -> float:
    size = np.abs(r)
    huber = np.where(size <= _LINEAR_BEYOND, size**2, _LINEAR_BEYOND * (2 * size - _LINEAR_BEYOND))
    return float(np.sum(weights**2 * huber) + np.sum(((x - centre) / spread) ** 2))


def _slopes(residuals: Callable[[Floats], Floats], x: Floats, r: Floats) -> NDArray[np.float64]:
    moved = np.empty((len(r), len(x)))
    for index in range(len(x)):
        near = x.copy()
        near[index] += 1e-3
        moved[:, index] = (residuals(near) - r) / 1e-3
    return moved


def family(row: PublishedRow) -> str:
    return next((each for each in FAMILIES if each in row.source), row.source)


def held_out(rows: list[PublishedRow]) -> list[tuple[PublishedRow, float | None, float | None]]:
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


def spreads(found: list[tuple[PublishedRow, float | None, float | None]]) -> tuple[dict[str, float], float]:
    """The 80th percentile of time errors, and the standard deviation of memory errors, of each regime.

    Fewer than `FEW` rows are often of one program on one card: for others, no less than `LEAST_OF_FEW` is claimed.
    Rows of programs whose bytes were counted have no part in the latter: it would be too small for all others.
    """
    by_regime: dict[str, list[float]] = {}
    for row, time, _ in found:
        if time is not None:
            by_regime.setdefault(regime(row), []).append(abs(time))
    memory = [error for row, _, error in found if error is not None and row.cases[0].training.counted is None]
    least = {name: 0.0 if len(errors) >= FEW else LEAST_OF_FEW for name, errors in by_regime.items()}
    time_spread = {name: max(least[name], float(np.quantile(errors, 0.8))) for name, errors in by_regime.items()}
    return time_spread, float(np.std(memory))


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
