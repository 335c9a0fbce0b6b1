"""``paceline plan validate``: how far off are the predictions on measurements that somebody published?"""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.files import check_writable, to_json
from paceline.cli.outputs import json_text, tell_written, write_text


@click.command(name="validate", short_help="Hold predictions against a file of measurements.")
@to_json
@click.argument("rows_file", type=click.Path(path_type=Path), metavar="ROWS.csv")
def command(rows_file: Path, json_file: Path | None) -> int:
    """Predict every row of a file of measured configurations, and print how far off the predictions are.

    Measured columns are compared, never read by the prediction. The columns are described in docs/how-to/plan.md; any
    may be empty, and a row that makes no sense is refused with its reason.
    """
    from paceline.plan.constants import fitted
    from paceline.plan.report import validate
    from paceline.plan.rows import read_rows
    from paceline.report import plan_errors

    check_writable(json_file)
    report = validate(read_rows(rows_file), fitted())
    for line in plan_errors.lines_of(report):
        click.echo(line)
    if json_file is not None:
        write_text(json_file, json_text(plan_errors.to_json(report)))
        tell_written(json_file)
    return 0
