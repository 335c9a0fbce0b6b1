"""``paceline trace``: what GPUs did, from profiler captures of any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.files import check_writable, to_json
from paceline.cli.outputs import json_text, tell_written, write_text

WINDOWS = ("all", "steps", "hta")


@click.command(name="trace", short_help="Say what GPUs did, from profiler captures of any number of ranks.")
@click.option(
    "--window", type=click.Choice(WINDOWS), default="all", show_default=True,
    help="Every GPU event; what marked steps launched; or what HolisticTraceAnalysis looks at.",
)  # fmt: skip
@click.option("--operators", is_flag=True, help="Say which operators, modules and lines launched the work.")
@click.option("--against", type=click.Path(path_type=Path), metavar="BEFORE", help="What changed since this capture.")
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Files to read side by side; default: the cores."
)
@to_json
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|FOLDER...")
def command(paths: tuple[Path, ...], **options: Any) -> int:
    """Break down captures of PyTorch's profiler (JSON, plain or gzipped) and Nsight Systems exports (SQLite).

    A folder stands for all captures in it. For each rank: idle time, compute, communication and copies, and what of
    these was exposed; over ranks: the kernels that take most, and who comes last to collectives.

    \b
    paceline trace trace.json.gz
    paceline trace traces/ --window steps --json trace.json
    paceline trace after.json.gz --against before.json.gz

    Exit code 2: nothing could be read.
    """
    from rich.console import Console

    from paceline.explain.traced import findings_in
    from paceline.report.trace_json import traces_json
    from paceline.report.trace_terminal import render_traces
    from paceline.traces.many import files_in, read_all

    json_file = options["json_file"]
    check_writable(json_file)
    traces = read_all(files_in(paths), options["window"], options["processes"], launchers=options["operators"])
    before = options["against"]
    against = read_all(files_in([before]), options["window"], options["processes"]) if before is not None else None
    findings = findings_in(traces)
    render_traces(traces, findings, Console(), against)
    if json_file is not None:
        write_text(json_file, json_text(traces_json(traces, findings, against)))
    tell_written(json_file)
    return 0
