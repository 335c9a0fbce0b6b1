"""Which differences to the baseline are found, and which are excused?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.tune.equivalence.outputs import RankOutputs, compare_outputs, gradient_tolerance

BASE = RankOutputs(
    rank=0,
    fed=[1, 2, 3, 4],
    losses=[1.0, 0.9, 0.8, 0.7],
    steps=4,
    parameters=5,
    gradients=6,
    buffers=[7, 8],
    rates=[0.1],
)


def failed(
    safety, candidate: RankOutputs, *, again: RankOutputs = BASE, seeds: tuple[RankOutputs, ...] = ()
) -> set[str]:
    found = compare_outputs(safety, [[BASE], *([s] for s in seeds)], [again], [candidate])
    return {check.name for check in found if not check.passed}


def test_the_same_passes_in_every_class():
    assert failed("exact", BASE) == failed("numeric", BASE) == set()


@pytest.mark.parametrize(
    "changes, names",
    [
        ({"fed": [1, 2, 9, 4]}, {"samples"}),
        ({"losses": [1.0, 0.9, 0.8, 0.7000001]}, {"losses"}),
        ({"steps": 3}, {"steps"}),
        ({"parameters": 0}, {"parameters"}),
        ({"gradients": 0}, {"gradients"}),
        ({"buffers": [7, 9]}, {"buffers"}),  # a BatchNorm that counted a recomputation
    ],
)
def test_an_exact_remedy_may_change_nothing(changes, names):
    assert failed("exact", replace(BASE, **changes)) == names


def test_what_the_baseline_does_not_repeat_is_not_held_against_a_candidate_but_for_its_samples():
    other = replace(BASE, losses=[2.0, 2.0, 2.0, 2.0], parameters=9)
    assert failed("exact", replace(BASE, parameters=3, losses=[3.0] * 4), again=other) == set()
    shuffled = replace(BASE, fed=[4, 3, 2, 1])
    assert failed("exact", shuffled, again=replace(BASE, fed=[2, 1, 4, 3])) == {"samples"}


def test_what_was_not_seen_is_not_said_to_be_the_same():
    blind = replace(BASE, losses=[], buffers=[])
    said = {check.name: check.text for check in compare_outputs("exact", [[blind]], [blind], [blind])}
    assert (said["losses"], said["buffers"]) == ("no losses to compare", "no buffers to compare")
    assert said["parameters"] == "the same parameters, bitwise identical"


def test_losses_that_are_no_numbers_are_the_same_where_the_baselines_are():
    lost = [replace(BASE, losses=[1.0, float("nan")]) for _ in range(2)]
    found = compare_outputs("exact", [lost[:1]], lost[:1], lost[1:])
    assert "the same losses, bitwise identical" in [check.text for check in found]


@pytest.mark.parametrize("apart, names", [(0.04, set()), (0.2, {"losses"})])
def test_a_numeric_remedy_may_differ_as_seeds_do(apart, names):
    seeds = tuple(replace(BASE, losses=[loss + d for loss in BASE.losses]) for d in (0.05, -0.05))
    candidate = replace(BASE, losses=[loss + apart for loss in BASE.losses], parameters=0)
    assert failed("numeric", candidate, seeds=seeds) == names


@pytest.mark.parametrize(
    "changes, names",
    [({"steps": 2}, {"steps"}), ({"rates": [0.05]}, {"schedule"}), ({"losses": [1, 1, 1, float("nan")]}, {"losses"})],
)
def test_a_numeric_remedy_may_not_skip_steps_or_step_a_schedule_too_often_or_diverge(changes, names):
    assert failed("numeric", replace(BASE, **changes)) == names


@pytest.mark.parametrize("again, names", [([3], {"buffers"}), ([9], set())], ids=["repeats", "does not"])
def test_a_numeric_remedy_may_not_count_otherwise(again, names):
    """Buffers of whole numbers count: the batches that BatchNorm has seen, say."""
    base, candidate = replace(BASE, counts=[3]), replace(BASE, counts=[6], buffers=[])
    found = compare_outputs("numeric", [[base]], [replace(base, counts=again)], [candidate])
    assert {check.name for check in found if not check.passed} == names


def test_ranks_that_said_nothing():
    assert [c.passed for c in compare_outputs("exact", [[BASE]], [BASE], [])] == [False]


@pytest.mark.parametrize("skipped, names", [(1, set()), (2, {"steps"})])
def test_steps_that_loss_scaling_skipped_are_told_and_may_not_be_many(skipped, names):
    candidate = replace(BASE, skipped=skipped)
    assert failed("numeric", candidate) == names
    (steps,) = [check for check in compare_outputs("numeric", [[BASE]], [BASE], [candidate]) if check.name == "steps"]
    assert f"{4 - skipped} optimizer steps applied, 4 in the baseline; {skipped} skipped" in steps.text


GRADIENTS = replace(BASE, first_gradients=[[1.0, -2.0, 0.5]], options=["SGD [('weight_decay', 0.01)]"], draws=True)


@pytest.mark.parametrize(
    "changes, names",
    [
        ({"first_gradients": [[1.001, -2.001, 0.501]]}, set()),
        ({"first_gradients": [[1.0, -1.0, 1.0]]}, {"gradients"}),  # their signs
        ({"first_gradients": [[1.0, -2.0]]}, {"gradients"}),  # of fewer parameters
        ({"first_gradients": [[float("inf"), 0.0, 0.0]]}, {"gradients"}),
        ({"options": ["SGD [('weight_decay', 0.0)]"]}, {"optimizer"}),
        ({"draws": False}, {"dropout"}),
    ],
)
def test_a_numeric_remedy_keeps_gradients_options_and_dropout(changes, names):
    found = compare_outputs("numeric", [[GRADIENTS]], [GRADIENTS], [replace(GRADIENTS, **changes)])
    assert {check.name for check in found if not check.passed} == names


def test_a_first_step_whose_scale_was_too_large_is_left_out():
    two = replace(GRADIENTS, first_gradients=[[1.0, 2.0], [3.0, 4.0]])
    skipped = replace(GRADIENTS, first_gradients=[[float("nan"), 2.0], [3.001, 4.0]])
    assert all(
        check.passed for check in compare_outputs("numeric", [[two]], [two], [skipped]) if check.name == "gradients"
    )


@pytest.mark.parametrize(
    "recipe, allowed",
    [({"compute": {"compile": "default"}}, 0.01), ({"precision": {"tf32": True}}, 0.05),
     ({"precision": {"autocast": "bf16", "tf32": True}}, 0.25)],
)  # fmt: skip
def test_how_much_rounding_is_allowed_depends_on_the_number_format(recipe, allowed):
    assert gradient_tolerance(recipe) == allowed
