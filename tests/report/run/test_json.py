"""The published JSON: its keys stay, its shares sum to 1, it is JSON, and its schema describes it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.report import sample
from tests.report.run.schema_check import errors
from tests.report.strategies import diagnoses

from paceline.explain.model import Diagnosis
from paceline.explain.next_step import NextStep
from paceline.record.layout import PHASES
from paceline.report.run.json import SCHEMA, schema_text, to_json

# What programs already read. Add keys to the object freely; take none out of here.
CONTRACT = {
    "": "schema version run_id exit_code device ranks wall_s startup_s steps throughput phases loader loss memory "
    "cost verdict findings unavailable",
    "steps": "count micro_steps warmup median_s p95_s",
    "throughput": "samples_per_s batch_size mfu",
    "loader": "workers on_cpu blocked runnable collate hand_over hot",
    "loss": "first last finite first_bad_step",
}


def written(diagnosis: Diagnosis) -> dict[str, Any]:
    """The object after a trip through a file."""
    return json.loads(json.dumps(to_json(diagnosis), allow_nan=False))


@pytest.mark.parametrize("scene", sample.SCENES)
def test_every_scene_is_valid(scene: str) -> None:
    schema = json.loads(schema_text())
    assert errors(written(sample.SCENES[scene]()), schema, schema) == []


@given(diagnoses)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_diagnosis_is_valid(diagnosis: Diagnosis) -> None:
    schema = json.loads(schema_text())
    made = written(diagnosis)
    assert errors(made, schema, schema) == []
    shares = [made["phases"][name]["share"] for name in PHASES]
    assert shares == [None] * 9 or sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("place", CONTRACT)
def test_contract(place: str) -> None:
    made = written(sample.diagnosis())
    assert set(CONTRACT[place].split()) <= set(made[place] if place else made)


def test_schema_name_comes_first() -> None:
    made = to_json(sample.diagnosis())
    assert list(made)[:2] == ["schema", "version"]
    assert made["schema"] == SCHEMA


def test_the_next_step_is_in_the_result() -> None:
    step = NextStep(text="run a program that trains", command=None)
    assert to_json(sample.diagnosis(), step)["next"] == [{"command": None, "text": "run a program that trains"}]
    assert to_json(sample.diagnosis())["next"] == []


def test_finding() -> None:
    first = written(sample.diagnosis())["findings"][0]
    assert first["code"] == "DATA002"
    assert first["gain"] == {"low": 1.55, "high": 2.1, "basis": "model", "confidence": "medium"}
    assert first["remedies"][0] == {
        "id": "loader.cache",
        "safety": "exact",
        "change": "Keep the decoded images (1.2 GiB, fits in memory)",
        "gain": {"low": 1.5, "high": 2.0, "basis": "model", "confidence": "medium"},
    }
    assert set(first["evidence"][0]) == {"text", "value", "unit"}


def test_phases_are_null_without_steps() -> None:
    phases = written(sample.no_steps())["phases"]
    assert phases == {name: {"share": None, "s": None} for name in PHASES}


def test_nan_is_null_with_a_reason() -> None:
    made = written(sample.nan_loss())
    assert made["loss"]["last"] is None
    assert "NaN" in made["unavailable"]["loss.last"]
    assert made["loss"]["first_bad_step"] == 412


def test_infinity_is_null_too() -> None:
    made = written(dataclasses.replace(sample.diagnosis(), wall_s=float("inf")))
    assert made["wall_s"] is None
    assert "wall_s" in made["unavailable"]


def test_a_reason_of_the_run_outranks_ours() -> None:
    diagnosis = dataclasses.replace(sample.diagnosis(), mfu=float("nan"), unavailable={"throughput.mfu": "no peak"})
    assert written(diagnosis)["unavailable"]["throughput.mfu"] == "no peak"


def test_the_validator_notices() -> None:
    schema = json.loads(schema_text())
    made = written(sample.diagnosis())
    made["phases"]["forward"]["share"] = 2
    made["findings"][0]["severity"] = "bad"
    del made["verdict"]
    assert len(errors(made, schema, schema)) == 3
