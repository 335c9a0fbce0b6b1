from __future__ import annotations

import pytest

from paceline.hardware.link import pcie_bytes_per_s, pcie_copy_bytes_per_s


@pytest.mark.parametrize(
    ("generation", "lanes", "gigabytes"),
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (6, 16, 121.0), (3, 4, 3.938)],
)
def test_line_rates_of_the_specification(generation, lanes, gigabytes):
    assert pcie_bytes_per_s(generation, lanes) == pytest.approx(gigabytes * 1e9, rel=1e-3)


def test_a_copy_reaches_part_of_it():
    assert pcie_copy_bytes_per_s(4, 16) == pytest.approx(25e9, rel=0.02)


@pytest.mark.parametrize(("generation", "lanes"), [(0, 16), (9, 16), (4, 0)])
def test_what_is_not_known_is_none(generation, lanes):
    assert pcie_bytes_per_s(generation, lanes) is None
    assert pcie_copy_bytes_per_s(generation, lanes) is None
