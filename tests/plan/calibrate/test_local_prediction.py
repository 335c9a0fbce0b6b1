from __future__ import annotations

import pytest
from tests.plan.models.test_operators import operator, tensor
from tests.plan.profiles import (
    BESIDE,
    BYTES_PER_S,
    CALL_S,
    FAR_BYTE_S,
    FIRST_BYTES,
    FLOPS,
    LATENCY_S,
    LINK_BYTES_PER_S,
    REFERENCE_S,
    SHARE,
    figure,
    profile,
)

from paceline.core.errors import UsageError
from paceline.plan.calibrate.local_prediction import fit_rates, live_bytes, predict_program

WIDTH, TOKENS = 512, 2048


def counted(op, count=1, part="passes", reads=None):
    return {**op, "count": count, "part": part, "reads": reads or {}}


def note(**changed):
    operators = [
        counted(
            operator("aten.mm.default", tensor(TOKENS, WIDTH), tensor(WIDTH, WIDTH)), 40, reads={"25": 1e8, "10": 9e9}
        ),
        counted(operator("aten.add.Tensor", tensor(TOKENS, WIDTH), tensor(TOKENS, WIDTH)), 100),
        counted(operator("aten.gelu.default", tensor(TOKENS, WIDTH)), 10, part="optimizer"),
        counted(operator("aten.view.default", tensor(TOKENS, WIDTH), [TOKENS * WIDTH]), 50),
    ]
    piece = 4 * TOKENS * WIDTH
    step = {
        "operators": operators,
        "sizes": [piece, piece, 2 * piece],
        "held": [[0, "passes"]],
        "memory": [2, -2, 3, -3],
        "resident": {"now": 320_000_000, "peak": 330_000_000},
        "batches": {
            "count": 3,
            "wall_s": [1e-3, 2e-3, 3e-3],
            "cpu_s": 2e-3,
            "workers": 0,
            "work_s": 0.05,
            "beside_s": None,
        },
    }
    model = {"class": "Toy", "dtype": "float32", "weight_bytes": 4}
    return {"model": model, "trained": 10**6, "autocast": None, "compiled": False, "step": {**step, **changed}}


def test_what_blocks_take_beside_their_operators_is_found_again():
    found = fit_rates(profile().places[0], profile())
    assert (found.call_s, found.far_byte_s) == (pytest.approx(CALL_S), pytest.approx(FAR_BYTE_S))
    assert found.scatter == pytest.approx(0, abs=1e-9)
    assert found.memory["transformer"] == (pytest.approx(FIRST_BYTES), pytest.approx(SHARE))
    two = fit_rates(profile().places[1], profile())  # its messages are known, and are no host's time
    assert two.call_s == pytest.approx(CALL_S)


def test_a_step_is_the_sum_of_its_parts():
    found = predict_program(note(), profile())
    parts = found.step_parts_s
    size = 4 * TOKENS * WIDTH
    assert parts["matrix"] == pytest.approx(40 * 2 * TOKENS * WIDTH**2 / FLOPS, rel=0.02)
    assert parts["bandwidth"] == pytest.approx(100 * (1e-6 + 2 * size / BYTES_PER_S), rel=0.05)
    assert parts["optimizer"] == pytest.approx(10 * (1e-6 + size / BYTES_PER_S), rel=0.05)
    assert (parts["host"], parts["caches"]) == (pytest.approx(200 * CALL_S), pytest.approx(1e8 * FAR_BYTE_S))
    assert parts["data"] == pytest.approx(2e-3)
    assert found.step_s == pytest.approx(sum(parts.values()))
    assert found.step_low_s < found.step_s < found.step_high_s
    assert found.told == ()


def test_times_are_brought_to_the_speed_of_now_and_what_was_measured_now_stays():
    then, slower = predict_program(note(), profile()), predict_program(note(), profile(), now=figure(1.1 * REFERENCE_S))
    data = then.step_parts_s["data"]
    assert (then.pace, slower.pace) == (1.0, pytest.approx(1.1))
    assert slower.step_parts_s["data"] == data
    assert slower.step_s - data == pytest.approx(1.1 * (then.step_s - data))
    assert slower.told == ()


@pytest.mark.parametrize(("pace", "says"), [(1.5, "1.50 times slower now"), (0.5, "2.00 times faster now")])
def test_another_speed_than_that_of_the_profile_is_told(pace, says):
    assert says in predict_program(note(), profile(), now=figure(pace * REFERENCE_S)).told[0]


def test_memory_is_what_was_held_before_and_what_tensors_take():
    found = predict_program(note(), profile())
    live = 3 * 4 * TOKENS * WIDTH
    assert live_bytes(note()["step"]) == live
    assert found.memory_bytes == pytest.approx(320e6 + FIRST_BYTES + SHARE * live)


def test_replicas_average_their_gradients_and_keep_them():
    one, two = predict_program(note(), profile()), predict_program(note(), profile(), ranks=2)
    assert two.step_parts_s["communication"] == pytest.approx(2 * LATENCY_S + 4e6 / LINK_BYTES_PER_S)
    assert two.memory_bytes - one.memory_bytes == pytest.approx(SHARE * 4e6)


def test_batches_that_are_made_beside_take_cores_and_not_the_whole_time():
    beside = {"count": 3, "wall_s": [10e-3] * 3, "cpu_s": 20e-3, "workers": 0, "work_s": 0.05, "beside_s": None}
    assert predict_program(note(batches=beside), profile()).step_parts_s["data"] == pytest.approx(BESIDE * 20e-3)
    workers = {"count": 3, "wall_s": [1e-3] * 3, "cpu_s": 4e-3, "workers": 2, "work_s": 0.05, "beside_s": None}
    assert predict_program(note(batches=workers), profile()).step_parts_s["data"] == pytest.approx(BESIDE * 4e-3)
    seen = {**workers, "beside_s": 7e-3}  # with the program's own loader
    assert predict_program(note(batches=seen), profile()).step_parts_s["data"] == pytest.approx(7e-3)
    slow = {"count": 3, "wall_s": [1.0] * 3, "cpu_s": 4e-3, "workers": 2, "work_s": 0.05, "beside_s": None}
    found = predict_program(note(batches=slow), profile())
    assert found.step_s == pytest.approx(1.0)  # it cannot keep up


def test_what_was_not_measured_is_taken_for_a_copy_and_told():
    strange = counted(operator("aten.erfinv.default", tensor(TOKENS, WIDTH)), 100)
    found = predict_program(note(operators=[*note()["step"]["operators"], strange]), profile())
    assert "erfinv.default" in found.told[0]
    assert found.step_parts_s["bandwidth"] > 150 * 4 * TOKENS * WIDTH / BYTES_PER_S


def test_a_program_whose_step_could_not_be_followed_is_refused():
    without = note()
    del without["step"]
    with pytest.raises(UsageError, match="two steps of Toy could not be traced"):
        predict_program(without, profile())
