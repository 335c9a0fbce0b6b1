"""``paceline trace``: break down profiler captures of one or many ranks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.base.command import EXIT_CODES, Command
from paceline.cli.base.files import FILE_ONLY, check_writable, opens_page, to_html, to_json, to_markdown
from paceline.cli.base.outputs import json_text, tell_written, whole, write_text
from paceline.cli.base.progress import Progress
from paceline.core.errors import UsageError
from paceline.traces import WINDOWS

if TYPE_CHECKING:
    from paceline.explain.model import Finding
    from paceline.traces.analyze.ranks import Traces
    from paceline.traces.perfetto import ExportWindow


@click.command(
    cls=Command,
    name="trace",
    examples=(
        "paceline trace trace.json.gz",
        "paceline trace traces/ --window steps --json trace.json",
        "paceline trace after.json.gz --against before.json.gz",
        "paceline trace traces/ --what-if communication=2 --html trace.html",
    ),
    groups={
        "What to analyse": ("--window", "--operators", "--critical-path", "--what-if", "--against"),
        "Window for Perfetto": ("--perfetto", "--between"),
        "Limits": ("--processes",),
    },
    exit_codes={"2": f"no capture could be read, or a {EXIT_CODES['2']}"},
)
@click.option(
    "--window", type=click.Choice(list(WINDOWS)), default="all", show_default=True,
    help="Which part of each capture is analysed. all: every GPU event. steps: the GPU work that the marked steps "
        "launched. hta: the events that HolisticTraceAnalysis uses.",
)  # fmt: skip
@click.option("--operators", is_flag=True, help="Show which operators, modules and source lines launched the GPU work.")
@click.option(
    "--critical-path",
    "path",
    is_flag=True,
    help="Show the critical path (at each point in time, the work that delayed the end of the capture), and how much "
    "shorter the capture would be without each part of the path.",
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="PART=TIMES",
    help="Estimate the time if one part were faster by a factor (such as communication=2) or took no time (such as "
    "loader=gone). Parts: loader, host, waits, compute, communication, copy, kernel:NAME.",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path),
    metavar="BEFORE",
    help="Compare with this earlier capture, or with the captures in this folder.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Number of capture files that are read in parallel. Default: the number of CPU cores.",
)
@click.option(
    "--perfetto",
    type=FILE_ONLY,
    metavar="FILE",
    help="Write a part of the captures to FILE, in a format that ui.perfetto.dev can open.",
)
@click.option(
    "--between", metavar="WINDOW",
    help="Which part --perfetto writes: marked steps ('#10:#12') or times ('1.5ms:20ms'). Default: the longest step.",
)  # fmt: skip
@to_json
@to_markdown
@to_html
@opens_page("trace")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE|FOLDER...")
def command(paths: tuple[Path, ...], **options: Any) -> int:
    """Break down captures of PyTorch's profiler (JSON, plain or gzipped) and of Nsight Systems (SQLite).

    For each rank, the command shows idle time, compute, communication and copies. It also shows how much communication
    and how many copies did not overlap with compute. Over all ranks, it shows the kernels that take most time and the
    stragglers (ranks for which the others wait). A folder means all captures in it.
    """
    from rich.console import Console

    from paceline.explain.diagnose import findings_in
    from paceline.report.trace.html import to_html as to_html_text
    from paceline.report.trace.json import traces_json
    from paceline.report.trace.markdown import to_markdown as to_markdown_text
    from paceline.report.trace.terminal import render_traces
    from paceline.traces.analyze.ranks import TraceOptions, read_all
    from paceline.traces.analyze.timeline import timeline_data_of
    from paceline.traces.analyze.what_if import parse_change
    from paceline.traces.perfetto import parse_window
    from paceline.traces.read.files import files_in

    outputs = options["json_file"], options["markdown"], options["html"], options["perfetto"]
    check_writable(*outputs)
    between = parse_window(options["between"]) if options["between"] is not None else None
    if between is not None and options["perfetto"] is None:
        raise UsageError("--between chooses the part that --perfetto writes; add --perfetto FILE")
    wanted = TraceOptions(
        window=options["window"],
        launchers=options["operators"],
        path=options["path"] or bool(options["what_if"]) or options["html"] is not None,
        what_if=options["what_if"],
    )
    for text in wanted.what_if:
        parse_change(text)  # raise errors before any file is read
    with Progress("files") as progress:
        traces = read_all(files_in(paths), wanted, options["processes"], progress)
    before = options["against"]
    against = None
    if before is not None:
        with Progress("files") as progress:
            against = read_all(files_in([before]), TraceOptions(window=wanted.window), options["processes"], progress)
    findings = findings_in(traces)
    render_traces(traces, findings, Console(), against)
    if options["json_file"] is not None:
        write_text(options["json_file"], json_text(traces_json(traces, findings, against)))
    if options["markdown"] is not None:
        write_text(options["markdown"], to_markdown_text(traces, findings, against))
    if options["html"] is not None:
        write_text(
            options["html"],
            to_html_text(traces, findings, timeline_data_of(traces), against, next_command=_next(paths, findings)),
        )
    if options["perfetto"] is not None:
        _write_cut(options["perfetto"], traces, between)
    tell_written(*outputs)
    return 0


def _next(paths: tuple[Path, ...], findings: Sequence[Finding]) -> str:
    """Return the next command: the page of the first finding, or the export of some steps for Perfetto."""
    if findings:
        return f"paceline explain {findings[0].code}"
    return shlex.join(["paceline", "trace", *map(str, paths), "--perfetto", "cut.json.gz"])


def _write_cut(path: Path, traces: Traces, between: ExportWindow | None) -> None:
    from paceline.traces.perfetto import export_window, sources_and_shifts, write_export

    data = export_window(*sources_and_shifts(traces), between)
    with whole(path) as place:
        write_export(place, data)
