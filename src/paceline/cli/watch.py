"""The steps of one ``paceline run``: folder, gauges, program, diagnosis, reports."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from paceline.cli.files import check_writable
from paceline.cli.no_training import check_command, discard, ended_before_training
from paceline.cli.price import price_of
from paceline.cli.program import Program, command_line, misplaced_option, stem_of
from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.recipe import Recipe, recipe_content
from paceline.core.recipe import check_recipe as checked_recipe
from paceline.hardware.operating_system import check_system
from paceline.inprocess.settings import applied
from paceline.monitor.supervision import Ending, supervise, watched_environment
from paceline.record import layout as record_layout
from paceline.record.write import RUNS, make_run_folder, new_run_id, replace_json
from paceline.train.layout import Layout, parse
from paceline.train.unmodified import told
from paceline.train.unmodified.allowed import check_goes_with, checked, spread
from paceline.tune.trials.applied_settings import revoked_settings, unapplied_settings


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
    """Run the program to its end and report on it. Returns the program's exit code.

    Raises:
        UsageError: The options are wrong, or the program does not exist; no run is left then.
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
    except (BrokenPipeError, SystemExit):  # rich exits where nobody reads stderr any more
        return ending.exit_code


def _tell_many_workers(recipe: Recipe, *, quiet: bool) -> None:
    """Announce the warning that torch prints if loader workers are more than the CPU cores."""
    workers = recipe.get("loader", {}).get("num_workers", 0)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if workers > cores and not quiet:
        _warn(
            f"the recipe starts {workers} loader workers on {cores} CPU cores; torch warns about this, and you can "
            f"ignore its warning if `paceline tune` measured the recipe on this machine"
        )


def _tell_without_effect(recipe: Recipe | None, layout: Layout | None, folder: Path) -> None:
    """Warn about parts of the recipe and the layout that were not applied."""
    lost = revoked_settings(recipe or {}, folder)
    for key, why in unapplied_settings(recipe or {}, folder).items():
        what = "was switched off while the program ran" if key in lost else "had no effect"
        _warn(f"the setting {key} of the recipe {what}: {why}")
    for what in told(folder):
        _warn(f"--layout {layout}: {what}")


def _reported(request: Request, folder: Path, exit_code: int) -> int:
    """Print and write the results. Returns the exit code of the command."""
    from paceline.cli.outputs import Outputs, present

    outputs = Outputs(
        json_file=request.json_file,
        markdown=request.markdown,
        html=(request.html,) if request.html else (),
        quiet=request.quiet,
        open_page=request.open_page,
    )
    diagnosis = present(folder, outputs)
    if request.captured is not None:
        from paceline.cli.captured import present_captures

        present_captures(folder, request.captured, quiet=request.quiet)
    failed = exit_code == 0 and diagnosis is not None and _fails(diagnosis.findings, request.fail_on)
    return 1 if failed else exit_code


def _tell_no_training(request: Request, ending: Ending) -> int:
    """Say that there is nothing to report. A command may train unseen, as in a container; a script cannot."""
    how = f"signal {ending.signal}" if ending.signal is not None else f"code {ending.exit_code}"
    when = ", and Paceline saw no training" if request.program.any_command else " before training began"
    if not request.quiet:
        _warn(f"the program ended with {how}{when}; there is no verdict, and the record of the run was not kept")
        if (flag := misplaced_option(request.program)) is not None:
            _warn(
                f"{flag} stands after the program, so it was given to the program; to give it to Paceline, put it "
                f"before the program, as in `paceline run {flag} … {stem_of(request.program)}.py`"
            )
    return ending.exit_code


def _recipe_and_layout(request: Request) -> tuple[Recipe | None, Layout | None]:
    """Return the recipe and the layout; without --layout, the layout in the recipe counts."""
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
    """Record how the program ended. A failure from here on must not change its exit code."""
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
        from paceline.monitor.gauges.sampler import Sampler

        started.append(Sampler(folder, roots=(pid,)))
        started[-1].start()
        threading.Thread(target=_prepare, daemon=True).start()

    try:
        return supervise(program, environment, start)
    finally:
        for sampler in started:
            sampler.stop()


def _prepare() -> None:
    """Import the modules for the report while the program starts."""
    for module in ("paceline.cli.outputs", "paceline.report.run.html", "paceline.report.run.terminal"):
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
