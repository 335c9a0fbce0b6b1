from __future__ import annotations

import math

import pytest

from paceline.core import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (0, "0 s"),
        (2.5e-9, "2.50 ns"),
        (12e-6, "12.0 µs"),
        (1.24e-3, "1.24 ms"),
        (3.1, "3.10 s"),
        (119.4, "119 s"),
        (125, "2 min 05 s"),
        (11_220, "3 h 07 min"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.2, "1 s"), (59, "59 s"), (61, "1 min"), (4800, "1 h 20 min")])
def test_rough_seconds(value: float, text: str) -> None:
    assert units.rough_seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.00124, "+1.24 ms"), (-2.0, "-2.00 s"), (0.0, "+0 s")])
def test_signed_seconds(value: float, text: str) -> None:
    assert units.signed_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (1.5 * 2**30, "1.50 GiB")]
)
def test_bytes(value: float | None, text: str) -> None:
    assert units.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "n/a"), (0.256, "26%"), (0.034, "3.4%"), (1.0, "100%")])
def test_percent(value: float | None, text: str) -> None:
    assert units.percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "n/a"), (1.849, "1.85x"), (12.3, "12x")])
def test_speedup(value: float | None, text: str) -> None:
    assert units.factor(value) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (2.41, 3.55, "95% CI 2.41–3.55, 24 pairs"),
        (1.2, math.inf, "95% CI from 1.20x, no upper limit known, 24 pairs"),
        (0.0, math.inf, "24 pairs, too few for an interval"),
    ],
)
def test_the_bounds_of_a_speedup(low: float, high: float, text: str) -> None:
    assert units.factor_bounds(low, high, "24 pairs") == text


@pytest.mark.parametrize(
    ("number", "noun", "text"), [(1, "step", "1 step"), (1240, "step", "1,240 steps"), (2, "batch", "2 batches")]
)
def test_count(number: int, noun: str, text: str) -> None:
    assert units.count(number, noun) == text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(-1, "just now"), (5, "5 s ago"), (180, "3 min ago"), (7200, "2 h ago"), (172_800, "2 days ago")],
)
def test_age(age_s: float, text: str) -> None:
    assert units.ago(age_s) == text


def test_money_and_rates() -> None:
    assert units.money(1234.5) == "1,234.50 USD"
    assert units.money(0.00123, "EUR") == "0.0012 EUR"
    assert units.rate(1240, "samples/s") == "1,240 samples/s"
    assert units.rate(12.34, "samples/s") == "12.3 samples/s"
