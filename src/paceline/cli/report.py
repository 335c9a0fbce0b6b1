"""``paceline report``: the report of a run from its record, during the run or afterwards."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import check_writable, to_html, to_json, to_markdown, to_open
from paceline.cli.base.outputs import Outputs, write
from paceline.cli.base.runs import PAGE, begun_unix_s, complete_run, find_run, in_runs_folder, run_folders
from paceline.core.errors import PacelineError, UsageError
from paceline.record.run import Run
from paceline.record.write import RUNS

if TYPE_CHECKING:
    from paceline.report.run.run_list import RunLine

_MOST = 20
_TITLE = re.compile(r"<title>([a-z0-9-]+): paceline ")
_HEAD_CHARS = 4096  # the title is at the beginning of a page


@click.command(
    cls=Command,
    name="report",
    examples=(
        "paceline report",
        "paceline report last",
        "paceline report 20261121-0315 --json run.json --html run.html",
    ),
    groups={"Which runs": ("--dir", "--all")},
)
@to_json
@to_markdown
@to_html
@to_open
@in_runs_folder
@click.option("--all", "everything", is_flag=True, help=f"List all runs, instead of only the {_MOST} newest.")
@click.argument("run", required=False, shell_complete=complete_run)
def command(run: str | None, directory: Path | None, everything: bool, **options: Any) -> int:
    """Show the report of a run, finished or still going; without RUN, list all runs.

    RUN is a run id, the beginning of one, the path of a run's folder, `last`, or `last~1` for the run before the last.
    """
    base = directory or RUNS
    if run is None:
        if any(options.values()):
            raise UsageError(
                "--json, --markdown, --html and --open need a run; give one, such as `paceline report last --json FILE`"
            )
        return _list(base, everything)
    folder = find_run(run, base)
    from paceline.explain.diagnose import diagnose
    from paceline.record.read import read_run

    html: Path | None = options.pop("html")
    check_writable(options["json_file"], options["markdown"], html)
    wanted = Outputs(**options, html=(html,) if html else (), to_stdout=True)
    write(diagnose(read_run(folder, in_stretches=True)), folder, wanted)
    return 0


def _list(base: Path, everything: bool) -> int:
    from rich.console import Console

    from paceline.report.run.run_list import print_runs

    folders = run_folders(base)
    if not folders:
        _tell(f"there are no runs in {base}; make one with `paceline run train.py`, or look elsewhere with --dir DIR")
        return 0
    shown = folders if everything else folders[:_MOST]
    print_runs([_line(folder) for folder in shown], Console())
    if len(folders) > len(shown):
        _tell(f"{len(folders) - len(shown)} older runs are not shown; `paceline report --all` lists all runs")
    elsewhere = "" if base == RUNS else f"--dir {shlex.quote(str(base))} "
    _tell(f"next: paceline report {elsewhere}{shown[0].name}")
    return 0


def _tell(text: str) -> None:
    click.echo(f"paceline: {text}", err=True)


def _line(folder: Path) -> RunLine:
    from paceline.report.run.run_list import RunLine

    ending, program = _told(folder)
    return RunLine(
        run_id=folder.name,
        age_s=time.time() - begun_unix_s(folder),
        ended=ending,
        verdict=_verdict(folder / PAGE),
        command=program,
    )


def _told(folder: Path) -> tuple[str, str]:
    """Return how a run ended, and its command, both read from the launch records only."""
    from paceline.explain.analysis.ending import ended
    from paceline.record.read import read_launches

    try:
        launches = read_launches(folder)
    except PacelineError:
        return "written by a newer Paceline", ""
    run = Run(run_id=folder.name, folder=folder, launches=launches, ranks=(), earlier=(), workers=(), gauges={})
    return ended(run), _shortened(launches[0].command) if launches else ""


def _shortened(command: Sequence[str]) -> str:
    """Return a command as text, with the program's name without its folder."""
    return shlex.join([Path(command[0]).name, *command[1:]]) if command else ""


def _verdict(page: Path) -> str:
    """Return the verdict, which is in the title of a run's page; empty if there is no readable page."""
    try:
        with page.open(encoding="utf-8") as file:
            found = _TITLE.search(file.read(_HEAD_CHARS))
    except (OSError, UnicodeDecodeError):
        return ""
    return found.group(1) if found else ""
