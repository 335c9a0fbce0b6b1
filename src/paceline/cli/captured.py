"""The results of ``paceline run --profile``: printed as ``paceline trace`` prints them, and a page."""

from __future__ import annotations

import os
from pathlib import Path

import click

from paceline.core.errors import PacelineError
from paceline.record import layout

PAGE = "trace.html"  # in the run's folder
_ONLY_HOST = "; the captures contain no GPU events, but ui.perfetto.dev can show the activity of the host"


def present_captures(folder: Path, steps: str, *, quiet: bool) -> None:
    """Explain the captures of a run. An internal error is one line and does not change the exit code."""
    captures = sorted((folder / layout.CAPTURES_DIR).glob("*.json"))
    if not captures:
        click.echo(f"paceline: steps {steps} were not captured: {_why(folder)}", err=True)
        return
    try:
        _present(folder, captures, quiet)
    except (PacelineError, OSError) as error:
        click.echo(f"paceline: the captures could not be analysed: {error}", err=True)
    except Exception as error:
        click.echo(f"paceline: the captures could not be analysed ({type(error).__name__}: {error})", err=True)
        if os.environ.get("PACELINE_DEBUG"):
            raise


def _present(folder: Path, captures: list[Path], quiet: bool) -> None:
    from rich.console import Console

    from paceline.cli.outputs import write_text
    from paceline.explain.diagnose import findings_in
    from paceline.report.trace.html import to_html
    from paceline.report.trace.terminal import render_traces
    from paceline.traces.analyze.ranks import TraceOptions, read_all
    from paceline.traces.analyze.timeline import timeline_data_of

    traces = read_all(captures, TraceOptions(launchers=True, path=True))
    findings = findings_in(traces)
    write_text(folder / PAGE, to_html(traces, findings, timeline_data_of(traces)))
    if not quiet:
        render_traces(traces, findings, Console(stderr=True))
        where = f"wrote captures to {folder / layout.CAPTURES_DIR} and their report to {folder / PAGE}"
        seen = any(rank.breakdown.events for rank in traces.ranks)
        click.echo(f"paceline: {where}{'' if seen else _ONLY_HOST}", err=True)


def _why(folder: Path) -> str:
    """Return why there is no capture, as far as a process recorded it."""
    from paceline.record.read import read_run

    for rank in read_run(folder).ranks:
        for note in rank.noted("capture"):
            if note.get("failed"):
                return str(note["failed"])
    return "the program ended before the first step to capture"
