"""``paceline plan``: what fits, how fast, on which machines, for how much. Each of its verbs has a file."""

from __future__ import annotations

from importlib import import_module

import click

VERBS = {
    "for": "Predict and search for a model (the verb may be left out).",
    "here": "Predict a program on this machine, or on one whose profile is at hand (also: --here).",
    "calibrate": "Measure what this machine can do (also: --calibrate).",
    "validate": "Hold predictions against a file of measurements.",
}
_AS_FLAGS = {"--here": "here", "--calibrate": "calibrate"}


class PlanVerbs(click.Group):
    """A group whose commands live in modules of their own; without one of them, `for` is meant."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `for` before anything that is no verb and no wish for help; some verbs may be written as flags."""
        flag = next((each for each in _before_program(args) if each in _AS_FLAGS), None)
        if flag is not None:
            args = [_AS_FLAGS[flag], *args[: args.index(flag)], *args[args.index(flag) + 1 :]]
        if args and args[0] not in (*VERBS, "-h", "--help"):
            args = ["for", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"paceline.cli.plan_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


def _before_program(args: list[str]) -> list[str]:
    """Return the arguments that cannot be a program's own."""
    ends = [place for place, each in enumerate(args) if each.endswith(".py") or each in ("-m", "--")]
    return args[: min(ends, default=len(args))]


@click.group(name="plan", cls=PlanVerbs, short_help="What fits, how fast, on which machines, for how much.")
def command() -> None:
    """Predict memory, time and money of training on more GPUs, and search for the best layout."""
