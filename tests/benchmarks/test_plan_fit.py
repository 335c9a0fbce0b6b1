"""The fit of the constants of `plan` to published rows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.plan.cases import PUBLISHED

from paceline.plan.cost.constants import PRIOR, prior
from paceline.plan.validate.published_rows import read_rows

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "plan"))

from fit import fit  # noqa: E402


def test_a_fit_on_other_rows_gives_other_constants_near_the_prior():
    rows = [row for row in read_rows(PUBLISHED) if "SC21" in row.source]
    found, start = fit(rows), prior()
    assert found.matrix_ampere != start.matrix_ampere
    assert found.matrix_hopper == pytest.approx(start.matrix_hopper, rel=1e-6)  # no such card in these rows
    assert all(getattr(found, name) > 0 for name in PRIOR)
