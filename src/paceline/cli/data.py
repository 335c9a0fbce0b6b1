"""``paceline data``: data sets of shards, converted once and read fast from then on. Each of its verbs has a file."""

from __future__ import annotations

from importlib import import_module

import click

VERBS = {
    "convert": "Convert a folder of pictures, or any Dataset, into shards.",
    "inspect": "Say what a data set of shards holds.",
    "verify": "Hold every byte of a data set against its checksum.",
    "export": "Write a data set of shards as TFRecord, HDF5 or for WebDataset.",
    "bench": "Measure how fast a data set is read, stage by stage.",
}


class DataVerbs(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in order of use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"paceline.cli.data_{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(name="data", cls=DataVerbs, short_help="Data sets of shards: convert, inspect, verify, measure.")
def command() -> None:
    """Convert data sets into shards that are read fast, and look at them."""
