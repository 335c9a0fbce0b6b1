"""The command line: one module per command, each imported only when it is used."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from paceline import __version__
from paceline.cli.base.lazy_group import ClosedOutput, LazyGroup
from paceline.core.errors import PacelineError

VERBS = {
    "run": "Watch a training program without changing it, and name its bottleneck.",
    "tune": "Try changes to a training program, and keep the changes that make it faster.",
    "trace": "Show where the time goes in profiler captures of one or many ranks.",
    "plan": "Predict whether a model fits in GPU memory, how fast it trains, and what the training costs.",
    "data": "Convert data sets into shards that load fast, and check them.",
    "report": "Show the report of a run, or list all runs.",
    "profile": "Profile a few more steps of a run that is still running.",
    "compare": "Show what became slower or faster from one run to another, and why.",
    "explain": "Print the page of a finding or a remedy.",
    "config": "Show the current settings, and where each setting comes from.",
}


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    modules="paceline.cli.",
    examples=(
        "paceline run train.py --epochs 1",
        "paceline tune train.py --epochs 1",
        "paceline plan llama-3-8b --gpus 8xH100-SXM",
        "paceline COMMAND --help",
    ),
    exit_codes={
        "1": "a regression (`compare`), a finding at least as severe as `--fail-on` (`run`), or damaged data "
        "(`data verify`)",
        "130": "Ctrl-C",
        "other": "`run` passes on the exit code of the program",
    },
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PACELINE"},
)
@click.version_option(__version__, prog_name="paceline")
def group() -> None:
    """Find out what slows PyTorch training down, fix it, and measure that the fix helps."""


def main(args: list[str] | None = None) -> Any:
    """Run the command line; each error is printed as one line and sets the exit code."""
    try:
        result = group.main(args=args, prog_name="paceline", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.Exit as ending:
        sys.exit(ending.exit_code)
    except click.ClickException as error:
        from paceline.cli.base.usage_errors import message_of

        _fail(message_of(error), error.exit_code)
    except PacelineError as error:
        _fail(str(error), error.exit_code)
    except (BrokenPipeError, ClosedOutput):
        _leave_closed_pipe()
    except OSError as error:
        _fail_on_system_error(error)
    except Exception as error:
        _fail_on_internal_error(error)
    sys.exit(result if isinstance(result, int) else 0)


def _fail(message: str, exit_code: int) -> None:
    click.echo(f"paceline: {message}", err=True)
    sys.exit(exit_code)


def _leave_closed_pipe() -> None:
    """Exit without an error after the reader of the output, such as `head`, has closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # Python flushes both streams again when it exits
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.exit(0)


def _fail_on_system_error(error: OSError) -> None:
    if _debug():
        raise error
    where = f"{error.filename}: " if error.filename else ""
    _fail(f"{where}{error.strerror or error}; to see the traceback, set PACELINE_DEBUG=1", 2)


def _fail_on_internal_error(error: Exception) -> None:
    if _debug():
        raise error
    _fail(
        f"internal error: {type(error).__name__}: {error}; please report this error. To see the traceback, set "
        f"PACELINE_DEBUG=1",
        3,
    )


def _debug() -> bool:
    return os.environ.get("PACELINE_DEBUG", "") not in ("", "0")
