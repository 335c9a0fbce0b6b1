"""``paceline plan``: predict memory, time and cost of training. Each of the subcommands has a module."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from paceline.cli.base.lazy_group import LazyGroup
from paceline.core.errors import UsageError, nearest

VERBS = {
    "for": "Predict the training of a model on a cluster, and find the best parallel layout. The word `for` can be "
    "left out.",
    "here": "Predict the training of a program on this machine, from the machine's profile (same as `plan --here`).",
    "calibrate": "Measure this machine, and write its profile (same as `plan --calibrate`).",
    "validate": "Compare predictions of `plan` with the measurements in a file.",
}
_AS_FLAGS = {"--here": "here", "--calibrate": "calibrate"}


class PlanVerbs(LazyGroup):
    """A group in which the word `for` can be left out. The help of the group shows the options of `for`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `for` unless the arguments begin with a command or ask for help.

        A flag that stands for a command is replaced by that command.
        """
        flag = next((each for each in _before_program(args) if each in _AS_FLAGS), None)
        if flag is not None:
            args = [_AS_FLAGS[flag], *args[: args.index(flag)], *args[args.index(flag) + 1 :]]
        self._check_verb(ctx, args)
        if args and args[0] not in (*VERBS, "-h", "--help"):
            args = ["for", *args]
        return super().parse_args(ctx, args)

    def _check_verb(self, ctx: click.Context, args: list[str]) -> None:
        """Raise a UsageError if the first word is similar to a command; `for` would take it for the name of a model."""
        if not args or args[0] in VERBS or "--gpus" in args or "--catalogue" in args or ctx.resilient_parsing:
            return
        if near := nearest(args[0], VERBS, cutoff=0.75):
            raise UsageError(
                f"there is no command {args[0]!r}; did you mean `{ctx.command_path} {near[0]}`? "
                "For a model of this name, add --gpus NxCARD"
            )

    def write_own_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of `plan for`."""
        command, inner = self._usual(ctx)
        command.format_options(inner, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, and the flags of `plan for`, that begin with the given text."""
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return found
        command, inner = self._usual(ctx)
        flags = [CompletionItem(flag, help=VERBS[verb]) for flag, verb in _AS_FLAGS.items()]
        every = {str(item.value): item for item in (*flags, *command.shell_complete(inner, incomplete))}
        return [item for name, item in every.items() if name.startswith(incomplete)]

    def _usual(self, ctx: click.Context) -> tuple[click.Command, click.Context]:
        command = self.get_command(ctx, "for")
        assert command is not None
        return command, click.Context(command, info_name="for", parent=ctx)


def _before_program(args: list[str]) -> list[str]:
    """Return the arguments before the script, `-m` or `--`; later ones belong to the program."""
    ends = [place for place, each in enumerate(args) if each.endswith(".py") or each in ("-m", "--")]
    return args[: min(ends, default=len(args))]


@click.group(
    name="plan",
    cls=PlanVerbs,
    verbs=VERBS,
    modules="paceline.cli.plan.",
    forms=(
        "[MODEL] --gpus NxCARD [OPTIONS]",
        "--gpus NxCARD [OPTIONS] SCRIPT [ARGS]...",
        "[MODEL] --catalogue --target-tokens N [OPTIONS]",
        "here|calibrate|validate [OPTIONS]",
    ),
    examples=(
        "paceline plan llama-3-8b --gpus 64xH100-SXM --target-tokens 1t",
        "paceline plan --params 1b --layers 24 --hidden 2048 --gpus 8xA100-SXM-80GB",
        "paceline plan llama-3-8b --catalogue --target-tokens 10b --deadline 48",
        "paceline plan calibrate",
    ),
)
def command() -> None:
    """Predict memory, time and cost of training a model, and find the best layout or the best machines for it."""
