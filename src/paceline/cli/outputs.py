"""How is a run presented? Diagnosed once, then written in every form that was asked for."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paceline.errors import EnvironmentFault, PacelineError
from paceline.explain.diagnose import diagnose
from paceline.explain.model import Diagnosis
from paceline.record.read import read_run

PAGE = "report.html"  # in the run's folder


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where the result goes."""

    json_file: Path | None = None
    markdown: Path | None = None
    html: tuple[Path, ...] = ()
    quiet: bool = False
    to_stdout: bool = False  # the verdict is the result of the command, and not a word beside the program's


def present(folder: Path, outputs: Outputs) -> Diagnosis | None:
    """Explain a run and write the reports. A fault of ours is one line: the program's result stands.

    Returns:
        The diagnosis, or None when the run could not be explained.
    """
    try:
        diagnosis = diagnose(read_run(folder))
        write(diagnosis, folder, outputs)
    except PacelineError as error:
        click.echo(f"paceline: {error}", err=True)
        return None
    except Exception as error:
        click.echo(
            f"paceline: the run could not be explained ({type(error).__name__}: {error}); "
            f"its record is kept in {folder}",
            err=True,
        )
        if os.environ.get("PACELINE_DEBUG"):
            raise
        return None
    return diagnosis


def write(diagnosis: Diagnosis, folder: Path, outputs: Outputs) -> None:
    """Write JSON, Markdown and HTML where asked, the page into the run's folder, and print the verdict.

    A run's folder that cannot be written is said in a line and stops nothing: the verdict still shows.

    Raises:
        EnvironmentFault: A file that was asked for cannot be written.
    """
    from paceline.report.html import to_html
    from paceline.report.json_run import to_json
    from paceline.report.markdown import to_markdown

    html = to_html(diagnosis)
    page = _write_page(folder / PAGE, html)
    if not outputs.quiet:
        _print_verdict(diagnosis, page, outputs.to_stdout)
    if outputs.json_file is not None:
        write_text(outputs.json_file, json_text(to_json(diagnosis)))
    if outputs.markdown is not None:
        write_text(outputs.markdown, to_markdown(diagnosis))
    for path in outputs.html:
        write_text(path, html)
    if not outputs.quiet:
        tell_written(outputs.json_file, outputs.markdown, *outputs.html)


def _write_page(page: Path, html: str) -> str:
    """Return where the page is, or nothing when it could not be written."""
    try:
        write_text(page, html)
    except EnvironmentFault as fault:
        click.echo(f"paceline: {fault} (--html FILE)", err=True)
        return ""
    return str(page)


def _print_verdict(diagnosis: Diagnosis, page: str, to_stdout: bool) -> None:
    from rich.console import Console

    from paceline.report.terminal import render

    sys.stdout.flush()
    console = Console(stderr=not to_stdout)
    following = next_command(diagnosis, "paceline report" if to_stdout else f"paceline report {diagnosis.run_id}")
    render(diagnosis, report_path=page, next_command=following, console=console)


def next_command(diagnosis: Diagnosis, otherwise: str) -> str:
    """Return what to type next: the page of the verdict, where it is a finding."""
    for finding in diagnosis.findings:
        if finding.name == diagnosis.verdict:
            return f"paceline explain {finding.code}"
    return otherwise


def tell_written(*paths: Path | None) -> None:
    """Say on stderr which files were written."""
    written = [str(path) for path in paths if path is not None]
    if written:
        click.echo(f"paceline: wrote {', '.join(written)}", err=True)


def json_text(record: dict[str, Any]) -> str:
    """Return JSON as it is written to a file."""
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all.

    Raises:
        EnvironmentFault: It cannot be written.
    """
    with whole(path) as place:
        place.write_text(text, encoding="utf-8")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a place to write to, which becomes the file in the end: what was there stays if that fails.

    Raises:
        EnvironmentFault: It cannot be written.
    """
    end = path.resolve()
    plain = end.is_file() or not end.exists()  # a pipe or a device is written to as it is
    place = end.with_name(f".part-{os.getpid()}-{end.name}") if plain else end
    try:
        yield place
        if plain:
            if end.exists():
                shutil.copymode(end, place)
            place.replace(end)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}; name a file elsewhere") from error
    finally:
        if plain:
            place.unlink(missing_ok=True)
