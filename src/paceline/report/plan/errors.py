"""The errors of predictions as a table for the terminal and the documentation, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from paceline import __version__
from paceline.core.units import count, percent
from paceline.plan.validate.accuracy import PredictionErrors, Validation
from paceline.plan.validate.published_rows import PublishedRow

SCHEMA = "paceline.plan-validate/1"
_HEAD = ("rows", "predicted", "time, median", "time, p90", "memory, median", "order")


def to_json(report: Validation) -> dict[str, Any]:
    """Return the JSON object of a validation; errors are fractions, unknown values are null."""
    return {
        "schema": SCHEMA,
        "paceline_version": __version__,
        "sources": [{"source": name, **_fields(errors)} for name, errors in report.sources.items()],
        "regimes": [{"regime": name, **_fields(errors)} for name, errors in report.regimes.items()],
        "overall": {**_fields(report.overall), "median_of_sources": report.median_of_sources},
        "oom": asdict(report.oom),
        "regret": asdict(report.regret),
        "rows": [_row(row, index, report) for index, row in enumerate(report.rows)],
    }


def markdown_table(groups: Iterable[tuple[str, PredictionErrors]], name: str) -> list[str]:
    """Return a Markdown table of prediction errors, aligned for the terminal; `name` titles the first column."""
    body = [(group, *_cells(errors)) for group, errors in groups]
    rows = [(name, *_HEAD), *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| "
        + " | ".join(_padded(cell, width, column) for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        + " |"
        for row in rows
    ]
    rule = (
        "|"
        + "|".join("-" * (width + 2) if not column else "-" * (width + 1) + ":" for column, width in enumerate(widths))
        + "|"
    )
    return [lines[0], rule, *lines[1:]]


def lines_of(report: Validation) -> list[str]:
    """Return the lines of the whole validation report.

    They show the errors by source and by regime, the predictions of whether models fit in memory, and the refused rows.
    """
    refused: dict[str, int] = {}
    for row in report.rows:
        if row.reason:
            refused[row.reason] = refused.get(row.reason, 0) + 1
    oom, overall = report.oom, [*report.sources.items(), ("all measurements", report.overall)]
    medians = report.median_of_sources
    return [
        *markdown_table(overall, "source"),
        "",
        f"median error over all sources of measurements: time {percent(medians['time_mdape'])}, memory "
        f"{percent(medians['memory_mdape'])}",
        "",
        *markdown_table(report.regimes.items(), "regime"),
        "",
        f"memory: {oom.right} predicted correctly; {oom.wrong_fits} did not fit although they were predicted to fit "
        f"({oom.sure_wrong_fits} of these were predicted to fit with a probability above 0.9); {oom.wrong_ooms} "
        f"fitted although they were predicted not to fit",
        f"in {percent(report.regret.within_5_percent)} of {report.regret.sweeps} sweeps, the configuration that was "
        f"predicted to be fastest was at most 5% slower than the fastest measured configuration; in the worst sweep, "
        f"it was {percent(report.regret.worst)} slower",
        f"pairs of configurations in a sweep that were predicted in the right order: "
        f"{percent(report.overall.order_in_sweeps)} (only pairs whose "
        "times per sample differ by more than 5%)",
        *[f"{count(rows, 'row')} not used: {reason}" for reason, rows in refused.items()],
    ]


def _padded(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)


def _cells(errors: PredictionErrors) -> tuple[str, ...]:
    shares = (errors.time_mdape, errors.time_p90, errors.memory_mdape, errors.order)
    return str(errors.rows), str(errors.predicted), *(percent(share) for share in shares)


def _fields(errors: PredictionErrors) -> dict[str, Any]:
    return asdict(errors)


def _row(row: PublishedRow, index: int, report: Validation) -> dict[str, Any]:
    found = report.predictions[index]
    return {
        "id": row.identity,
        "source": row.source,
        "step_s": found.step_s,
        "measured_step_s": row.step_s,
        "memory_bytes": found.memory_bytes,
        "measured_memory_bytes": row.memory_bytes,
        "needed_bytes": found.needed_bytes,
        "out_of_memory": row.out_of_memory,
        "assumed": found.assumed,
        "reason": found.reason,
    }
