from __future__ import annotations

import json

import pytest
from tests.plan.cases import PUBLISHED

from paceline.cli import main
from paceline.plan.cost.constants import fitted
from paceline.plan.validate.accuracy import validate
from paceline.plan.validate.published_rows import read_rows


@pytest.fixture(scope="module")
def report():
    return validate(read_rows(PUBLISHED), fitted())


def test_published_rows_are_predicted_as_well_as_the_docs_say(report):
    """A floor under the accuracy that docs/reference/plan.md prints."""
    assert report.overall.predicted >= 480
    assert report.median_of_sources["time_mdape"] < 0.08
    assert report.median_of_sources["memory_mdape"] < 0.06
    assert report.overall.order > 0.94
    assert (report.oom.wrong_fits, report.oom.sure_wrong_fits) == (0, 0)


def test_every_regime_has_a_fitted_interval(report):
    """Without one, a plan of that kind would silently get the wide default interval."""
    assert set(report.regimes) - {"refused"} == set(fitted().time_spread)


def test_choosing_by_predictions_costs_little(report):
    assert report.regret.sweeps > 30
    assert report.regret.within_5_percent >= 0.9


def test_errors_are_counted_by_hand(report):
    name = "Korthikanti 2022 Table 5"
    errors = sorted(
        abs(found.step_s / row.step_s - 1) for row, found in zip(report.rows, report.predictions) if row.source == name
    )
    assert report.sources[name].time_mdape == pytest.approx((errors[2] + errors[3]) / 2)
    assert report.sources[name].rows == 6


def test_every_row_is_either_predicted_or_refused(report):
    for found, row in zip(report.predictions, report.rows):
        assert (found.step_s is None) == (found.reason != "")
        assert found.reason == row.reason


def test_the_command_writes_the_contract(tmp_path, capsys):
    path = tmp_path / "out.json"
    with pytest.raises(SystemExit) as ended:
        main(["plan", "validate", str(PUBLISHED), "--json", str(path)])
    assert ended.value.code == 0
    record = json.loads(path.read_text(encoding="utf-8"))
    wanted = {"source", "rows", "predicted", "time_mdape", "time_p90", "memory_mdape", "order"}
    assert all(wanted <= set(source) for source in record["sources"])
    assert wanted - {"source"} <= set(record["overall"])
    assert set(record["overall"]["median_of_sources"]) == {"time_mdape", "memory_mdape", "order"}
    assert {"right", "wrong_fits", "wrong_ooms"} <= set(record["oom"])
    assert record["sources"][0]["memory_mdape"] is None  # Mosaic publishes none: null, never zero
    assert record["schema"] == "paceline.plan-validate/1"
    assert "median error over all sources of measurements" in capsys.readouterr().out
