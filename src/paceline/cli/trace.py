"""``paceline trace``: what GPUs did, from profiler captures of any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.files import check_writable, to_html, to_json, to_markdown
from paceline.cli.outputs import json_text, tell_written, whole, write_text
from paceline.errors import UsageError
from paceline.traces import WINDOWS

if TYPE_CHECKING:
    from paceline.traces.cut import Between
    from paceline.traces.many import Traces


@click.command(name="trace", short_help="Say what GPUs did, from profiler captures of any number of ranks.")
@click.option(
    "--window", type=click.Choice(list(WINDOWS)), default="all", show_default=True,
    help="Every GPU event; what marked steps launched; or what HolisticTraceAnalysis looks at.",
)  # fmt: skip
@click.option("--operators", is_flag=True, help="Say which operators, modules and lines launched the work.")
@click.option(
    "--critical-path", "path", is_flag=True, help="Say what each moment waited for, and what would be faster."
)
@click.option(
    "--what-if",
    multiple=True,
    metavar="PART=TIMES",
    help="How fast it would be if a part took 1/TIMES, or were 'gone'. "
    "Parts: loader, host, waits, compute, communication, copy, kernel:NAME.",
)
@click.option("--against", type=click.Path(path_type=Path), metavar="BEFORE", help="What changed since this capture.")
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Files to read side by side; default: the cores."
)
@click.option("--perfetto", type=click.Path(path_type=Path), metavar="FILE", help="Cut a window out, for Perfetto.")
@click.option("--between", metavar="WINDOW", help="That window: '#10:#12' (marked steps) or '1.5ms:20ms'.")
@to_json
@to_markdown
@to_html
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
    from paceline.report.trace_html import to_html as to_html_text
    from paceline.report.trace_json import traces_json
    from paceline.report.trace_markdown import to_markdown as to_markdown_text
    from paceline.report.trace_terminal import render_traces
    from paceline.traces.changes import change_of
    from paceline.traces.cut import between_of
    from paceline.traces.gallery import gallery_of
    from paceline.traces.many import files_in, read_all
    from paceline.traces.summary import Wanted

    outputs = options["json_file"], options["markdown"], options["html"], options["perfetto"]
    check_writable(*outputs)
    between = between_of(options["between"]) if options["between"] is not None else None
    if between is not None and options["perfetto"] is None:
        raise UsageError("--between names the window of --perfetto FILE; name that file too")
    wanted = Wanted(
        window=options["window"],
        launchers=options["operators"],
        path=options["path"] or bool(options["what_if"]) or options["html"] is not None,
        what_if=options["what_if"],
    )
    for text in wanted.what_if:
        change_of(text)  # what is asked wrongly is refused before anything is read
    traces = read_all(files_in(paths), wanted, options["processes"])
    before = options["against"]
    against = None
    if before is not None:
        against = read_all(files_in([before]), Wanted(window=wanted.window), options["processes"])
    findings = findings_in(traces)
    render_traces(traces, findings, Console(), against)
    if options["json_file"] is not None:
        write_text(options["json_file"], json_text(traces_json(traces, findings, against)))
    if options["markdown"] is not None:
        write_text(options["markdown"], to_markdown_text(traces, findings, against))
    if options["html"] is not None:
        write_text(options["html"], to_html_text(traces, findings, gallery_of(traces), against))
    if options["perfetto"] is not None:
        _write_cut(options["perfetto"], traces, between)
    tell_written(*outputs)
    return 0


def _write_cut(path: Path, traces: Traces, between: Between | None) -> None:
    from paceline.traces.cut import cut, sources_of, write

    data = cut(*sources_of(traces), between)
    with whole(path) as place:
        write(place, data)
