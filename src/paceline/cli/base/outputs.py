"""Writes the result of a run: the run is diagnosed once and written in each requested format."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.base.files import STDOUT, open_page, write_to_stdout
from paceline.cli.base.runs import PAGE
from paceline.core.errors import EnvironmentFault, PacelineError

if TYPE_CHECKING:
    from paceline.explain.model import Diagnosis
    from paceline.explain.next_step import NextStep


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The files and formats in which a result is to be written."""

    json_file: Path | None = None
    markdown: Path | None = None
    html: tuple[Path, ...] = ()
    quiet: bool = False
    open_page: bool = False  # whether to open the page in the browser
    to_stdout: bool = False  # whether to print the verdict to stdout; with `run`, stdout belongs to the program


def present(folder: Path, outputs: Outputs) -> Diagnosis | None:
    """Diagnose a run and write its reports. An internal error is printed as one line and does not change the exit code.

    Returns:
        The diagnosis, or None if the run could not be diagnosed.
    """
    from paceline.explain.diagnose import diagnose
    from paceline.record.read import read_run

    try:
        diagnosis = diagnose(read_run(folder, in_stretches=True))
        write(diagnosis, folder, outputs)
    except PacelineError as error:
        click.echo(f"paceline: {error}", err=True)
        return None
    except Exception as error:
        click.echo(
            f"paceline: the run could not be analysed (internal error: {type(error).__name__}: {error}); "
            f"the record of the run is kept in {folder}",
            err=True,
        )
        if os.environ.get("PACELINE_DEBUG"):
            raise
        return None
    return diagnosis


def write(diagnosis: Diagnosis, folder: Path, outputs: Outputs) -> None:
    """Write JSON, Markdown and HTML if requested, write the page in the run's folder, and print the verdict.

    If the run's folder is not writable, one line says so and the verdict is still printed.

    Raises:
        EnvironmentFault: A requested file cannot be written.
    """
    from paceline.report.run.html import to_html
    from paceline.report.run.json import to_json
    from paceline.report.run.markdown import to_markdown

    following = _next_step(diagnosis, folder)
    html = to_html(diagnosis, following=following)
    page = _write_page(folder / PAGE, html)
    if not outputs.quiet:
        _print_verdict(diagnosis, page, following, outputs.to_stdout)
    if outputs.json_file is not None:
        write_text(outputs.json_file, json_text(to_json(diagnosis, following)))
    if outputs.markdown is not None:
        write_text(outputs.markdown, to_markdown(diagnosis))
    for path in outputs.html:
        write_text(path, html)
    if not outputs.quiet:
        tell_written(outputs.json_file, outputs.markdown, *outputs.html)
    if outputs.open_page:
        open_page(Path(page) if page else next(iter(outputs.html), None))


def _write_page(page: Path, html: str) -> str:
    """Write a page and return its path, or an empty string if the page could not be written."""
    try:
        write_text(page, html)
    except EnvironmentFault as fault:
        click.echo(f"paceline: {fault} (--html FILE)", err=True)
        return ""
    return str(page)


def _next_step(diagnosis: Diagnosis, folder: Path) -> NextStep:
    """Return what to do next. If other runs cannot be read, it is based on the record of this run alone."""
    from paceline.cli.base.runs import run_before
    from paceline.explain.next_step import after_run
    from paceline.record.read import read_launches
    from paceline.tune.trials.applied_settings import is_in_force

    launches = read_launches(folder)
    try:
        before = run_before(folder)
    except (OSError, PacelineError):
        before = None
    launch = launches[0] if launches else None
    works = launch is None or launch.recipe is None or is_in_force(Path(launch.cwd) / launch.recipe, folder)
    return after_run(diagnosis, launch, before, recipe_in_force=works)


def _print_verdict(diagnosis: Diagnosis, page: str, following: NextStep, to_stdout: bool) -> None:
    from rich.console import Console

    from paceline.report.run.terminal import render

    sys.stdout.flush()
    console = Console(stderr=not to_stdout)
    render(diagnosis, report_path=page, following=following, console=console)


def tell_written(*paths: Path | None) -> None:
    """Print to stderr which files were written."""
    written = [str(path) for path in paths if path is not None and path != STDOUT]
    if written:
        click.echo(f"paceline: wrote {', '.join(written)}", err=True)


def json_text(record: dict[str, Any]) -> str:
    """Return JSON as formatted text."""
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file, completely or not at all; if the path is `-`, write to stdout.

    Raises:
        EnvironmentFault: The file cannot be written.
    """
    if path == STDOUT:
        write_to_stdout(text)
        return
    with whole(path) as place:
        place.write_text(text, encoding="utf-8")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. The written file replaces `path` at the end.

    If writing fails, the old file at `path` stays unchanged.

    Raises:
        EnvironmentFault: The file cannot be written.
    """
    end = path.resolve()
    plain = end.is_file() or not end.exists()  # pipes and devices are written to directly
    place = end.with_name(f".part-{os.getpid()}-{end.name}") if plain else end
    try:
        yield place
        if plain:
            if end.exists():
                shutil.copymode(end, place)
            place.replace(end)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror or error}; give a file in another folder"
        ) from error
    finally:
        if plain:
            place.unlink(missing_ok=True)
