"""``paceline report``: what held a run back, from its record, while it runs and long after."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import click

from paceline.cli.files import to_html, to_json, to_markdown
from paceline.cli.outputs import PAGE, Outputs, write
from paceline.cli.runs import begun_unix_s, find_run, in_runs_folder, run_folders
from paceline.errors import PacelineError, UsageError
from paceline.explain.diagnose import diagnose
from paceline.explain.ending import ended
from paceline.record.read import read_launches, read_run
from paceline.record.run import Run
from paceline.record.write import RUNS
from paceline.report.run_list import RunLine, print_runs

_MOST = 20
_TITLE = re.compile(r"<title>([a-z0-9-]+): paceline ")
_HEAD_CHARS = 4096  # the title is among the first of a page


@click.command(name="report", short_help="Show the report of a run, finished or still going on.")
@to_json
@to_markdown
@to_html
@in_runs_folder
@click.option("--all", "everything", is_flag=True, help=f"List all runs, not only the {_MOST} newest.")
@click.argument("run", required=False)
def command(
    json_file: Path | None,
    markdown: Path | None,
    html: Path | None,
    directory: Path | None,
    everything: bool,
    run: str | None,
) -> int:
    """Explain a RUN from its record and print the verdict; without RUN, list the runs that there are.

    RUN is the path of a run's folder, a run id, the beginning of one, or `last`.

    \b
    paceline report
    paceline report last
    paceline report 20261121-0315 --json run.json --html run.html
    """
    base = directory or RUNS
    if run is None:
        if json_file or markdown or html:
            raise UsageError(
                "which run? Name one, as in `paceline report last --json FILE`; without one runs are listed"
            )
        return _list(base, everything)
    folder = find_run(run, base)
    wanted = Outputs(json_file=json_file, markdown=markdown, html=(html,) if html else (), to_stdout=True)
    write(diagnose(read_run(folder)), folder, wanted)
    return 0


def _list(base: Path, everything: bool) -> int:
    from rich.console import Console

    folders = run_folders(base)
    if not folders:
        click.echo(f"no runs in {base}; `paceline run train.py` makes one, and --dir DIR looks elsewhere", err=True)
        return 0
    shown = folders if everything else folders[:_MOST]
    print_runs([_line(folder) for folder in shown], Console())
    more = f"; {len(folders) - len(shown)} older ones with --all" if len(folders) > len(shown) else ""
    click.echo(f"paceline: next: paceline report {shown[0].name}{more}", err=True)
    return 0


def _line(folder: Path) -> RunLine:
    ending, program = _told(folder)
    return RunLine(
        run_id=folder.name,
        age_s=time.time() - begun_unix_s(folder),
        ended=ending,
        verdict=_verdict(folder / PAGE),
        command=program,
    )


def _told(folder: Path) -> tuple[str, str]:
    """Return how a run ended and its command, from its launch records alone."""
    try:
        launches = read_launches(folder)
    except PacelineError:
        return "written by a newer Paceline", ""
    run = Run(run_id=folder.name, folder=folder, launches=launches, ranks=(), earlier=(), workers=(), gauges={})
    return ended(run), _shortened(launches[0].command) if launches else ""


def _shortened(command: Sequence[str]) -> str:
    """Print a command without the folder of its program."""
    return shlex.join([Path(command[0]).name, *command[1:]]) if command else ""


def _verdict(page: Path) -> str:
    """Return the verdict that the run's page names: the page was made when the run ended, or was looked at last."""
    try:
        with page.open(encoding="utf-8") as file:
            found = _TITLE.search(file.read(_HEAD_CHARS))
    except (OSError, UnicodeDecodeError):
        return ""
    return found.group(1) if found else ""
