"""Are models cut into stages, and refused where they cannot be?"""

from __future__ import annotations

import pytest
from torch import nn

from paceline.core.errors import UsageError
from paceline.train.parallel.pp import Pipeline, stages_of


def row(count=6):
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))


def test_stages_keep_the_names_of_the_model():
    model = row()
    ((number, stage),) = stages_of(model, 1, 3, Pipeline())
    assert (number, [name for name, _ in stage.named_parameters()]) == (1, ["2.weight", "2.bias", "3.weight", "3.bias"])
    assert stage.get_submodule("2") is model[2]


def test_a_rank_has_several_stages_far_apart():
    made = stages_of(row(), 0, 2, Pipeline(schedule="interleaved"))
    assert [number for number, _ in made] == [0, 2]


def tied():
    model = row()
    model[5].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Linear(4, 4), "Linear is not an nn.Sequential"),
        (row(2), "3 stages, and the model has 2 layers; use at most pp=2"),
        (tied(), "5.weight is shared by stages 0 and 2"),
    ],
    ids=["no row", "too short", "shared parameters"],
)
def test_what_cannot_be_cut_is_refused(model, says):
    with pytest.raises(UsageError, match=says):
        stages_of(model, 0, 3, Pipeline())
