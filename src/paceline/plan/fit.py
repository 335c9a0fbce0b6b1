"""How are the constants found? Least squares on the logarithm of predicted over measured, drawn back to the prior.

Every source weighs the square root of its rows, so that none drowns the others; residuals beyond a fifth count linearly
(Huber), since published rows hold mistakes. Gauss-Newton steps with Levenberg's damping, derivatives by differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from paceline.plan.columns import Floats
from paceline.plan.constants import PRIOR, Constants, prior, read
from paceline.plan.predict import Prepared, memory_bytes, prepare, step_seconds
from paceline.plan.rows import Row

_LINEAR_BEYOND = 0.2
_ROUNDS = 30
_NOISE = 0.08  # what one row scatters where the model is right: weighs rows against the prior
TIME = tuple(name for name in PRIOR if name not in ("activation", "logits_bytes", "reserved", "context", "workspace"))
MEMORY = ("activation", "logits_bytes", "reserved", "context", "workspace")


def fit(rows: Sequence[Row]) -> Constants:
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
    rows: Sequence[Row],
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


def _weights(rows: Sequence[Row]) -> Floats:
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
