"""Do parts of a loader's batches make the batches of one process?"""

from __future__ import annotations

import pytest
from tests.data.loader.test_loader import Numbers

from paceline.core.errors import UsageError
from paceline.data import Loader
from paceline.data.loader.loader import part_of


def loader(**settings) -> Loader:
    return Loader(Numbers(44), 8, True, seed=5, threads=0, **settings)


@pytest.mark.parametrize("settings", [{}, {"lanes": 3}])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parts_of_each_step_are_that_step(ranks, settings):
    whole, parts = loader(**settings), [part_of(loader(**settings), rank, ranks) for rank in range(ranks)]
    for _ in range(2):  # epochs
        steps = [sorted(int(one) for batch in step for one in batch) for step in zip(*parts, strict=True)]
        assert steps == [sorted(batch.tolist()) for batch in whole]
    assert len(steps) == 6
    assert all(part.state_dict() == whole.state_dict() for part in parts)


def test_a_part_goes_on_where_the_loader_was():
    whole = loader()
    taken = [next(loop := iter(whole)), next(loop)]
    left = [number for batch in part_of(whole, 0, 1) for number in batch.tolist()]
    assert sorted([*left, *(number for batch in taken for number in batch.tolist())]) == list(range(44))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rank": 0, "world": 2}, "already has rank=0 and world=2"),
        ({"on_error": "skip"}, "would give 2 ranks parts of different sizes"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        part_of(loader(**settings), 0, 2)
