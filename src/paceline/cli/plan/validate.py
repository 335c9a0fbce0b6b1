"""``paceline plan validate``: compare predictions with a file of measurements."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import check_writable, to_json
from paceline.cli.base.outputs import json_text, tell_written, write_text


@click.command(
    cls=Command,
    name="validate",
    examples=("paceline plan validate rows.csv", "paceline plan validate rows.csv --json errors.json"),
)
@to_json
@click.argument("rows_file", type=click.Path(path_type=Path), metavar="ROWS.csv")
def command(rows_file: Path, json_file: Path | None) -> int:
    """Compare predictions with the measured configurations in a CSV file, and print the errors.

    The predictions never use the measured columns. docs/how-to/plan.md describes the columns; each may be empty. If a
    row contradicts itself, the error message names the row and the reason.
    """
    from paceline.plan.cost.constants import fitted
    from paceline.plan.validate.accuracy import validate
    from paceline.plan.validate.published_rows import read_rows
    from paceline.report.plan import errors as plan_errors

    check_writable(json_file)
    report = validate(read_rows(rows_file), fitted())
    for line in plan_errors.lines_of(report):
        click.echo(line)
    if json_file is not None:
        write_text(json_file, json_text(plan_errors.to_json(report)))
        tell_written(json_file)
    return 0
