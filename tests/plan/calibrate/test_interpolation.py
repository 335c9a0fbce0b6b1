from __future__ import annotations

import pytest

from paceline.plan.calibrate.interpolation import fit_message_time, fit_part_rates, interpolation_of


def points(seconds):
    return [((m, k), seconds(m, k), 2.0 * m * k) for m in (64, 256, 1024) for k in (64, 512, 4096)]


def test_a_size_that_was_measured_gives_what_was_measured():
    found = interpolation_of(points(lambda m, k: m * k * 1e-9 * (1 + 40 / m)))
    assert found.seconds((256, 512), 2 * 256 * 512) == pytest.approx(256 * 512 * 1e-9 * (1 + 40 / 256), rel=0.03)


def test_between_sizes_a_power_law_is_followed():
    found = interpolation_of(points(lambda m, k: 1e-9 * m**0.8 * k))
    assert found.seconds((128, 1024), 2 * 128 * 1024) == pytest.approx(1e-9 * 128**0.8 * 1024, rel=0.05)


def test_far_outside_the_efficiency_stays_near_that_of_the_edge():
    found = interpolation_of(points(lambda m, k: m * k * 1e-9 * (1 + 40 / m)))
    far = found.seconds((2**20, 2**20), 2.0**41)
    assert far == pytest.approx(2.0**40 * 1e-9, rel=0.3)


def test_messages_have_a_latency_and_a_bandwidth():
    found = fit_message_time([(size, 3e-5 + size / 2e9) for size in (1e3, 1e5, 1e7)])
    assert (found.latency_s, found.bytes_per_s) == (pytest.approx(3e-5), pytest.approx(2e9))
    assert found.seconds(4e6) == pytest.approx(3e-5 + 2e-3)


def test_one_size_of_message_is_no_line():
    with pytest.raises(ValueError, match="measure at least two message sizes"):
        fit_message_time([(1e3, 1e-5), (1e3, 2e-5)])


def test_what_wholes_take_beside_their_parts_is_found():
    parts = [[100.0, 5.0], [300.0, 1.0], [50.0, 20.0]]
    rests = [100 * 2e-3 + 5 * 0.1, 300 * 2e-3 + 0.1, 50 * 2e-3 + 20 * 0.1]
    assert fit_part_rates(parts, rests, [1.0, 1.0, 3.0]) == pytest.approx([2e-3, 0.1])


def test_nothing_takes_less_than_no_time():
    found = fit_part_rates([[100.0, 5.0], [300.0, 1.0], [50.0, 20.0]], [1.0, 3.0, 0.1], [1.0, 3.0, 1.0])
    assert found[0] > 0
    assert found[1] == 0.0
    assert fit_part_rates([[1.0], [2.0]], [-1.0, -2.0], [1.0, 1.0]) == [0.0]
