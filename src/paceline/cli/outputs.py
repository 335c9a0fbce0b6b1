"""How is a run presented? Diagnosed once, then written in every form that was asked for."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from paceline.errors import EnvironmentFault, PacelineError
from paceline.explain.diagnose import diagnose
from paceline.explain.model import Diagnosis
from paceline.record.read import read_run


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Where the result goes."""

    json_file: Path | None = None
    markdown: Path | None = None
    html: tuple[Path, ...] = ()
    quiet: bool = False


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
    """Write JSON, Markdown and HTML where asked, and the verdict to stderr."""
    from paceline.report.html import to_html
    from paceline.report.json_run import to_json
    from paceline.report.markdown import to_markdown

    page = folder / "report.html"
    if outputs.json_file is not None:
        _write(outputs.json_file, json.dumps(to_json(diagnosis), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if outputs.markdown is not None:
        _write(outputs.markdown, to_markdown(diagnosis))
    html = to_html(diagnosis)
    for path in (page, *outputs.html):
        _write(path, html)
    if not outputs.quiet:
        _print_verdict(diagnosis, page)


def _print_verdict(diagnosis: Diagnosis, page: Path) -> None:
    from rich.console import Console

    from paceline.report.terminal import render

    sys.stdout.flush()
    render(diagnosis, report_path=str(page), next_command=next_command(diagnosis), console=Console(stderr=True))


def next_command(diagnosis: Diagnosis) -> str:
    """Return what to type next: the page of the verdict, or the report."""
    for finding in diagnosis.findings:
        if finding.name == diagnosis.verdict:
            return f"paceline explain {finding.code}"
    return f"paceline report {diagnosis.run_id}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror or error}; name a file elsewhere") from error
