"""Do all layouts train the same model? Real ranks, against a loop written by hand on one process."""

from __future__ import annotations

import pytest
from tests.train.launching import held_against_one_process

FOUR_PARTS = {"micro_batches": 4}
FP16, BF16 = {"autocast": "fp16"}, {"autocast": "bf16"}

ON_FOUR = [
    {"recipe": {"layout": "dp=4", "memory": FOUR_PARTS}},
    {"recipe": {"layout": "dp=2,shard=2", "memory": {"micro_batches": 2, "checkpoint_every": 1}}, "ragged": True},
    {"recipe": {"layout": "shard=2,tp=2"}, "plan": True},
    {"recipe": {"layout": "dp=2,tp=2"}, "from": 0},
    {"recipe": {"layout": "tp=2,pp=2"}, "from": 2},
    {"recipe": {"layout": "shard=2,pp=2", "memory": FOUR_PARTS}, "from": 2},
    {"recipe": {"layout": "dp=2,pp=2", "memory": FOUR_PARTS, "pipeline": {"schedule": "gpipe"}}, "ragged": True},
    {"recipe": {"layout": "pp=4", "memory": FOUR_PARTS, "pipeline": {"schedule": "zero-bubble"}}, "ragged": True},
    {
        "recipe": {
            "layout": "pp=4",
            "memory": FOUR_PARTS,
            "pipeline": {"schedule": "interleaved", "balance": "measured"},
        }
    },
    {"recipe": {"layout": "shard=4"}, "from": 8},
    {"recipe": {"layout": "dp=2,cp=2", "memory": {"checkpoint_every": 1}}, "ragged": True},
    {"recipe": {"layout": "shard=2,pp=2", "memory": FOUR_PARTS, "precision": FP16}, "tolerance": 0.02},
    {
        "recipe": {"layout": "tp=2,pp=2", "memory": FOUR_PARTS, "precision": BF16},
        "plan": True,
        "tolerance": 0.02,
    },
    {"recipe": {"layout": "shard=2,cp=2"}, "ragged": True},
]

ON_EIGHT = [
    {"recipe": {"layout": "dp=2,tp=2,pp=2", "memory": FOUR_PARTS}, "ragged": True},
    {"recipe": {"layout": "dp=2,shard=4"}, "from": 0, "ragged": True},
]


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    return held_against_one_process(4, 4, ON_FOUR, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("number", range(len(ON_FOUR)), ids=[case["recipe"]["layout"] for case in ON_FOUR])
def test_four_ranks_train_as_one(on_four, number):
    """Where a case has a `from`, it began with the checkpoint of another layout, optimizer included."""
    holds(on_four[number])


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
    return held_against_one_process(8, 4, ON_EIGHT, tmp_path_factory.mktemp("eight"))


@pytest.mark.parametrize("number", range(len(ON_EIGHT)), ids=[case["recipe"]["layout"] for case in ON_EIGHT])
def test_eight_ranks_train_as_one(on_eight, number):
    holds(on_eight[number])


def holds(found):
    tolerance = found.get("tolerance", 2e-6)  # as far as sixteen bits may be off
    assert found["loss_difference"] < tolerance
    assert found["norm_difference"] < tolerance
    assert found["parameter_difference"] < 5 * tolerance
    assert found["last_loss"] < 5.5  # it has learnt: the first loss is above 5.6
