"""A run as one JSON object for programs, schema ``paceline.run/1``; `assets/run.schema.json` describes it.

New keys can be added, but keys never change. Units are in the names (``_s``, ``_bytes``); shares are fractions of one.
A number that was not measured, or is not finite, is null, and ``unavailable`` gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from paceline import __version__
from paceline.explain.model import (
    Cost,
    Diagnosis,
    HotFunction,
    LoaderBreakdown,
    LossCurve,
    RankBreakdown,
)
from paceline.explain.next_step import NextStep
from paceline.record.layout import PHASES
from paceline.report.findings_json import finding_json
from paceline.report.words import finite, steps_of

SCHEMA = "paceline.run/1"
NOT_FINITE = "the value is NaN or infinite"

Json = dict[str, Any]


def to_json(diagnosis: Diagnosis, following: NextStep | None = None) -> Json:
    """Return the JSON object of a run. It contains no NaN, so `json.dumps(..., allow_nan=False)` accepts it."""
    found: Json = {
        "schema": SCHEMA,
        "version": __version__,
        "run_id": diagnosis.run_id,
        "command": diagnosis.command,
        "exit_code": diagnosis.exit_code,
        "ended": diagnosis.ended,
        "device": diagnosis.device,
        "device_name": diagnosis.device_name,
        "ranks": diagnosis.world,
        "wall_s": diagnosis.wall_s,
        "startup_s": diagnosis.startup_s,
        "steps": _steps(diagnosis),
        "throughput": _throughput(diagnosis),
        "phases": _phases(diagnosis.shares, diagnosis.seconds),
        "by_rank": [_rank(rank) for rank in diagnosis.ranks],
        "loader": _loader(diagnosis.loader),
        "loss": _loss(diagnosis.loss),
        "memory": dict(diagnosis.memory),
        "cost": _cost(diagnosis.cost),
        "verdict": diagnosis.verdict,
        "verdict_text": diagnosis.verdict_text,
        "findings": [finding_json(finding) for finding in diagnosis.findings],
    }
    missing: dict[str, str] = {}
    clean: Json = {name: _without_nan(value, name, missing) for name, value in found.items()}
    clean["unavailable"] = missing | dict(diagnosis.unavailable)
    clean["problems"] = list(diagnosis.problems)
    clean["patched"] = list(diagnosis.patched)
    clean["next"] = [following.record] if following is not None else []
    return clean


def schema_text() -> str:
    """Return the JSON Schema (draft 2020-12) of the result of `to_json`."""
    return files("paceline.report").joinpath("assets", "run.schema.json").read_text(encoding="utf-8")


def _without_nan(value: object, path: str, missing: dict[str, str]) -> Any:
    """Return a copy of plain data with NaN and infinity replaced by None; add each path with a reason to `missing`."""
    if isinstance(value, float) and finite(value) is None:
        missing[path] = NOT_FINITE
        return None
    if isinstance(value, Mapping):
        return {str(key): _without_nan(inner, f"{path}.{key}", missing) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_nan(inner, f"{path}.{i}", missing) for i, inner in enumerate(value)]
    return value


def _steps(diagnosis: Diagnosis) -> Json:
    step = diagnosis.step_s
    return {
        "count": steps_of(diagnosis.ranks),
        "micro_steps": max((rank.micro_steps for rank in diagnosis.ranks), default=0),
        "warmup": max((rank.warmup for rank in diagnosis.ranks), default=0),
        "median_s": step.value if step else None,
        "median_low_s": step.low if step else None,
        "median_high_s": step.high if step else None,
        "p95_s": diagnosis.p95_s,
    }


def _throughput(diagnosis: Diagnosis) -> Json:
    return {
        "samples_per_s": diagnosis.samples_per_s,
        "batch_size": diagnosis.batch_size,
        "mfu": diagnosis.mfu,
    }


def _phases(shares: Mapping[str, float], seconds: Mapping[str, float]) -> Json:
    whole = sum(shares.get(name, 0.0) for name in PHASES)
    known = finite(whole) is not None and whole > 0
    return {
        name: {"share": shares.get(name, 0.0) / whole if known else None, "s": seconds.get(name)} for name in PHASES
    }


def _rank(rank: RankBreakdown) -> Json:
    return {
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "device": rank.device,
        "steps": rank.steps,
        "median_s": rank.step_s.value,
        "p95_s": rank.p95_s,
        "samples_per_s": rank.samples_per_s,
        "peak_rss_bytes": rank.peak_rss_bytes,
        "peak_device_bytes": rank.peak_device_bytes,
        "phases": _phases(rank.shares, rank.seconds),
    }


def _hot(functions: Sequence[HotFunction]) -> list[Json]:
    return [{"function": one.function, "share": one.share, "count": one.count} for one in functions]


def _loader(loader: LoaderBreakdown | None) -> Json | None:
    if loader is None:
        return None
    return {
        "workers": loader.workers,
        "threads": loader.threads,
        "loader": loader.loader,
        "on_cpu": loader.on_cpu,
        "blocked": loader.blocked,
        "runnable": loader.runnable,
        "collate": loader.collate,
        "hand_over": loader.hand_over,
        "batches": loader.batches,
        "batch_s": loader.batch_s.value,
        "cpu_per_batch_s": loader.cpu_per_batch_s,
        "read_bytes_per_s": loader.read_bytes_per_s,
        "hot": _hot(loader.hot),
    }


def _loss(loss: LossCurve | None) -> Json | None:
    if loss is None:
        return None
    return {
        "first": loss.first,
        "last": loss.last,
        "finite": loss.finite,
        "first_bad_step": loss.first_bad_step,
        "target": loss.target,
        "target_reached": None if loss.target_reached is None else dict(loss.target_reached),
    }


def _cost(cost: Cost | None) -> Json | None:
    if cost is None:
        return None
    return {
        "price_per_hour_usd": cost.price_per_hour,
        "price_source": cost.price_source,
        "run_usd": cost.run,
        "idle_usd": cost.idle,
        "idle_share": cost.idle_share,
    }
