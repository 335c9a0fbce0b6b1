"""The stages of ``paceline run``: make the folder, record gauges, run the program, diagnose the run, write reports."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from paceline.cli.base.files import check_writable
from paceline.cli.base.price import price_of
from paceline.cli.base.program import Program, check_command, command_line, misplaced_option, start_of, stem_of
from paceline.cli.base.runs import LAST
from paceline.core.errors import EnvironmentFault, PacelineError, UsageError
from paceline.core.layout import Layout, parse
from paceline.core.recipe import Recipe, recipe_content
from paceline.core.recipe import check_recipe as checked_recipe
from paceline.hardware.operating_system import check_system
from paceline.inprocess.settings import applied
from paceline.monitor.supervision import Ending, supervise, watched_environment
from paceline.record import layout as record_layout
from paceline.record.write import RUNS, make_run_folder, new_run_id, replace_json
from paceline.train.unmodified import told
from paceline.train.unmodified.allowed import check_goes_with, checked, spread
from paceline.tune.trials.applied_settings import revoked_settings, unapplied_settings

_CAPTURES_PAGE = "trace.html"  # file name in the run's folder
_ONLY_HOST = "; the captures contain no GPU events, but ui.perfetto.dev can show the activity of the host"


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of ``paceline run``."""

    program: Program
    recipe: Path | None
    layout: str | None  # such as "dp=2"
    json_file: Path | None
    markdown: Path | None
    html: Path | None
    open_page: bool
    directory: Path | None
    run_id: str | None
    price: float | None
    instance: str | None
    target_loss: float | None
    no_profile: bool
    captured: str | None  # steps, such as "10:13"
    fail_on: str
    quiet: bool


def watch(request: Request) -> int:
    """Run the program to its end, report on it, and return the exit code of the command.

    Raises:
        UsageError: The options are wrong, or the program does not exist. In this case no run is recorded.
    """
    check_system("paceline run", "posix")
    if request.layout is not None:
        check_system("paceline run --layout", "linux")
    if _disabled():
        return supervise(command_line(request.program), os.environ).exit_code
    recipe, layout = _recipe_and_layout(request)
    program = command_line(request.program)
    if request.program.any_command:
        check_command(program)
    price, source = price_of(request.price, request.instance)
    check_writable(request.json_file, request.markdown, request.html)
    folder = make_run_folder(request.directory or RUNS, _run_id(request.run_id) or new_run_id(stem_of(request.program)))
    launch = _launch(request, program, price, source)
    tag = f"{launch['host']}-{launch['pid']}"
    _write_launch(folder / f"launch-{tag}.json", launch)
    _tell_many_workers(recipe or {}, quiet=request.quiet)
    environment = applied(recipe) if recipe is not None else {}
    if layout is not None:
        program, environment = spread(layout, program, environment)
    try:
        ending = _supervised(request, program, folder, environment)
    except UsageError:
        discard(folder, tag)
        raise
    if ended_before_training(folder, ending.exit_code):
        discard(folder, tag)
        return _tell_no_training(request, ending)
    _write_ending(folder / f"end-{tag}.json", ending)
    _tell_without_effect(recipe, layout, folder)
    try:
        return _reported(request, folder, ending.exit_code)
    except (BrokenPipeError, SystemExit):  # rich exits if stderr is closed
        return ending.exit_code


def _tell_many_workers(recipe: Recipe, *, quiet: bool) -> None:
    """Warn that torch prints a warning if the recipe sets more loader workers than there are CPU cores."""
    workers = recipe.get("loader", {}).get("num_workers", 0)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers > cores and not quiet:
        _warn(
            f"the recipe starts {workers} loader workers on {cores} CPU cores; torch warns about this, and you can "
            f"ignore its warning if `paceline tune` measured the recipe on this machine"
        )


def _tell_without_effect(recipe: Recipe | None, layout: Layout | None, folder: Path) -> None:
    """Warn about settings of the recipe and parts of the layout that were not applied."""
    lost = revoked_settings(recipe or {}, folder)
    for key, why in unapplied_settings(recipe or {}, folder).items():
        what = "was switched off while the program ran" if key in lost else "had no effect"
        _warn(f"the setting {key} of the recipe {what}: {why}")
    for what in told(folder):
        _warn(f"--layout {layout}: {what}")


def _reported(request: Request, folder: Path, exit_code: int) -> int:
    """Print the verdict and write the reports; return the exit code of the command."""
    from paceline.cli.base.outputs import Outputs, present

    outputs = Outputs(
        json_file=request.json_file,
        markdown=request.markdown,
        html=(request.html,) if request.html else (),
        quiet=request.quiet,
        open_page=request.open_page,
    )
    diagnosis = present(folder, outputs)
    if request.captured is not None:
        present_captures(folder, request.captured, quiet=request.quiet)
    failed = exit_code == 0 and diagnosis is not None and _fails(diagnosis.findings, request.fail_on)
    return 1 if failed else exit_code


def _tell_no_training(request: Request, ending: Ending) -> int:
    """Print that there is nothing to report, and return the program's exit code.

    The text differs for a command that is not a script, which can train unobserved, for example in a container.
    """
    how = f"signal {ending.signal}" if ending.signal is not None else f"code {ending.exit_code}"
    when = ", and Paceline saw no training" if request.program.any_command else ", and Paceline recorded no step"
    if not request.quiet:
        _warn(f"the program ended with {how}{when}; there is no verdict, and the record of the run was not kept")
        if (flag := misplaced_option(request.program)) is not None:
            _warn(
                f"{flag} stands after the program, so it was passed to the program; to pass it to Paceline, put it "
                f"before the program, as in `paceline run {flag} … {start_of(request.program)}`"
            )
    return ending.exit_code


def _recipe_and_layout(request: Request) -> tuple[Recipe | None, Layout | None]:
    """Return the recipe and the layout. Without `--layout`, the layout is that of the recipe."""
    content = recipe_content(request.recipe) if request.recipe is not None else {}
    of_recipe = content.pop("layout", None)
    recipe = checked_recipe(content, str(request.recipe)) if request.recipe is not None else None
    given = request.layout if request.layout is not None else of_recipe
    layout = checked(parse(str(given))) if given is not None else None
    if layout is not None:
        check_goes_with(layout, recipe or {}, any_command=request.program.any_command)
    return recipe, layout


def _run_id(given: str | None) -> str | None:
    if given is not None and not re.fullmatch(r"\w[\w.-]*", given):
        raise UsageError(
            f"--run-id {given!r} is not a valid name for a run; use letters, digits, '-', '_' and '.', such as "
            f"--run-id main-1"
        )
    if given == LAST:
        raise UsageError(f"--run-id {LAST} would be mistaken for the newest run, which is called so; give another name")
    return given


def _write_launch(path: Path, launch: dict[str, Any]) -> None:
    try:
        replace_json(path, launch)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write the record of the run to {path.parent}: {error.strerror or error}; give another folder "
            f"with --dir DIR (or PACELINE_RUN_DIR=DIR)"
        ) from error


def _write_ending(path: Path, ending: Ending) -> None:
    """Record how the program ended. If writing fails, the exit code does not change."""
    if ending.ended_ranks:
        _warn(
            f"the command was killed, but {ending.ended_ranks} of its training processes were still running; "
            f"Paceline ended these processes"
        )
    record = {name: getattr(ending, name) for name in ("exit_code", "signal", "asked_to_end", "wall_s", "oom_kills")}
    try:
        replace_json(path, record)
    except OSError as error:
        _warn(f"the end of the program could not be recorded in {path.parent}: {error.strerror or error}")


def _warn(text: str) -> None:
    click.echo(f"paceline: {text}", err=True)


def _supervised(request: Request, program: list[str], folder: Path, added: Mapping[str, str]) -> Ending:
    environment = {**watched_environment(folder, os.environ), **added}
    environment["PACELINE_PROFILE"] = "0" if request.no_profile else "1"
    environment["PACELINE_CAPTURE"] = request.captured or ""
    started: list[Any] = []

    def start(pid: int) -> None:
        from paceline.monitor.gauges.sampler import GaugeSampler

        started.append(GaugeSampler(folder, roots=(pid,)))
        started[-1].start()
        threading.Thread(target=_prepare, daemon=True).start()

    try:
        return supervise(program, environment, start)
    finally:
        for sampler in started:
            sampler.stop()


def _prepare() -> None:
    """Import the modules for the report in advance, while the program starts."""
    for module in ("paceline.cli.base.outputs", "paceline.report.run.html", "paceline.report.run.terminal"):
        import_module(module)


def _launch(request: Request, program: list[str], price: float | None, source: str) -> dict[str, Any]:
    return {
        "schema": record_layout.SCHEMA_VERSION,
        "host": platform.node() or "localhost",
        "pid": os.getpid(),
        "argv": sys.argv,
        "command": program,
        "started_unix_s": time.time(),
        "started_ns": time.monotonic_ns(),
        "cwd": str(Path.cwd()),
        "recipe": str(request.recipe) if request.recipe is not None else None,
        "price_per_hour": price,
        "price_source": source,
        "target_loss": request.target_loss,
    }


def _fails(findings: Sequence[Any], threshold: str) -> bool:
    levels = {"never": (), "critical": ("critical",), "warning": ("critical", "warning")}[threshold]
    return any(finding.severity in levels for finding in findings)


def _disabled() -> bool:
    return os.environ.get("PACELINE_DISABLE", "0") not in ("", "0")


def ended_before_training(folder: Path, exit_code: int) -> bool:
    """Return whether a program failed before any of its processes was observed to train."""
    seen = any((folder / record_layout.RANKS_DIR).iterdir()) or (folder / record_layout.WARNED_FILE).exists()
    return exit_code != 0 and not seen and _is_alone(folder)


def _is_alone(folder: Path) -> bool:
    """Return whether a run has only one launch. Another host can use the same folder for its own launch."""
    return len(list(folder.glob("launch-*.json"))) == 1


def discard(folder: Path, tag: str) -> None:
    """Remove the files of one launch from the folder of a run, and the folder if no other launch shares it."""
    if _is_alone(folder):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        (folder / f"launch-{tag}.json").unlink(missing_ok=True)


def present_captures(folder: Path, steps: str, *, quiet: bool) -> None:
    """Analyze the profiler captures of a run and print the result.

    An internal error is printed as one line and does not change the exit code.
    """
    captures = sorted((folder / record_layout.CAPTURES_DIR).glob("*.json"))
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

    from paceline.cli.base.outputs import write_text
    from paceline.explain.diagnose import findings_in
    from paceline.report.trace.html import to_html
    from paceline.report.trace.terminal import render_traces
    from paceline.traces.analyze.ranks import TraceOptions, read_all
    from paceline.traces.analyze.timeline import timeline_data_of

    traces = read_all(captures, TraceOptions(launchers=True, path=True))
    findings = findings_in(traces)
    write_text(folder / _CAPTURES_PAGE, to_html(traces, findings, timeline_data_of(traces)))
    if not quiet:
        render_traces(traces, findings, Console(stderr=True))
        where = f"wrote captures to {folder / record_layout.CAPTURES_DIR} and their report to {folder / _CAPTURES_PAGE}"
        seen = any(rank.breakdown.events for rank in traces.ranks)
        click.echo(f"paceline: {where}{'' if seen else _ONLY_HOST}", err=True)


def _why(folder: Path) -> str:
    """Return why there is no capture: the reason that a process recorded, or that the program ended too early."""
    from paceline.record.read import read_run

    for rank in read_run(folder).ranks:
        for note in rank.noted("capture"):
            if note.get("failed"):
                return str(note["failed"])
    return "the program ended before the first step to capture"
