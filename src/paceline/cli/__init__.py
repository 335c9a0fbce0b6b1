"""The command line: one file per verb, each imported only when it is asked for."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from paceline import __version__
from paceline.cli.settings import defaults_of, name_variables, settings_map
from paceline.errors import PacelineError

VERBS = {
    "run": "Watch an unmodified training program and name what holds it back.",
    "tune": "Try the fixes on an unmodified program and keep what measurably helps.",
    "trace": "Say what GPUs did, from profiler captures of any number of ranks.",
    "plan": "Predict what fits, how fast, on which machines, for how much.",
    "data": "Convert data sets into shards that are read fast, and look at them.",
    "report": "Show the report of a run, finished or still going on.",
    "profile": "Have a run that is going on take another profiler window.",
    "compare": "Say what got slower or faster between two runs, and why.",
    "explain": "Print the page of a finding: what it means, how it is decided, what helps.",
    "config": "Show the settings in force and where each comes from.",
}


class Verbs(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"paceline.cli.{cmd_name}").command
        name_variables(cmd_name, command)
        ctx.default_map = {cmd_name: defaults_of(cmd_name, command, settings_map())}
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "PACELINE"})
@click.version_option(__version__, prog_name="paceline")
def group() -> None:
    """Make PyTorch training as fast and as cheap as the hardware allows, and prove it."""


def main(args: list[str] | None = None) -> Any:
    """Run the command line; every error of ours becomes one line and its exit code."""
    try:
        result = group.main(args=args, prog_name="paceline", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PacelineError as error:
        click.echo(f"paceline: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        click.echo(
            f"paceline: a fault of ours: {type(error).__name__}: {error}\n"
            "  the program's record is kept; PACELINE_DEBUG=1 shows where it happened",
            err=True,
        )
        if _debug():
            raise
        sys.exit(3)
    sys.exit(result if isinstance(result, int) else 0)


def _debug() -> bool:
    import os

    return os.environ.get("PACELINE_DEBUG", "") not in ("", "0")
