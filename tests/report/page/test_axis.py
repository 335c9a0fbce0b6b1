"""Axes: where values lie and which round values are marked."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.report.page.axis import Axis, axis, log_axis


def labels(low: float, high: float, unit: str, most: int = 5) -> list[str]:
    return [label for _, label in Axis(low=low, high=high, unit=unit).ticks(most)]


@pytest.mark.parametrize(
    ("low", "high", "unit", "expected"),
    [
        (0, 1.0, "s", ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s"]),
        (0, 0.45, "s", ["0", "100 ms", "200 ms", "300 ms", "400 ms"]),
        (0, 540, "s", ["0", "2 min", "4 min", "6 min", "8 min"]),
        (0, 3, "steps", ["0", "1", "2", "3"]),
        (0, 1_000_000, "steps", ["0", "0.2 M", "0.4 M", "0.6 M", "0.8 M", "1 M"]),
        (0, 100_000, "steps", ["0", "20 k", "40 k", "60 k", "80 k", "100 k"]),
        (0, 80 * 2**30, "bytes", ["0", "20 GiB", "40 GiB", "60 GiB", "80 GiB"]),
        (0, 3 * 2**20, "bytes/s", ["0", "1 MiB/s", "2 MiB/s", "3 MiB/s"]),
        (0, 100, "%", ["0", "20%", "40%", "60%", "80%", "100%"]),
    ],
)
def test_ticks(low: float, high: float, unit: str, expected: list[str]) -> None:
    assert labels(low, high, unit) == expected


def test_log_ticks_are_powers_of_ten() -> None:
    assert [label for _, label in log_axis([0.003, 20.0], "").ticks()] == ["0.01", "0.1", "1", "10"]


def test_log_fraction() -> None:
    made = log_axis([0.01, 100.0], "")
    assert [made.fraction(value) for value in (0.01, 1.0, 100.0, 1e9)] == pytest.approx([0, 0.5, 1, 1])


@example(low=9e-12, width=1e-6, unit="steps")
@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.sampled_from(["s", "steps", "bytes", "%", ""]))
def test_ticks_lie_on_the_axis_and_are_not_many(low: float, width: float, unit: str) -> None:
    made = Axis(low=low, high=low + max(width, abs(low) * 1e-6), unit=unit)
    ticks = [value for value, _ in made.ticks()]
    slack = (made.high - made.low) * 1e-6
    assert len(ticks) <= 8
    assert all(made.low - slack <= value <= made.high + slack for value in ticks)


@pytest.mark.parametrize("values", [[], [0.0], [5.0], [-3.0, -3.0]])
def test_axis_of_few_values_has_a_width(values: list[float]) -> None:
    made = axis(values, "s", floor=None)
    assert made.high > made.low
