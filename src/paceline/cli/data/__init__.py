"""``paceline data``: commands on data sets of shards, with one module for each command."""

from __future__ import annotations

import click

from paceline.cli.base.lazy_group import LazyGroup

VERBS = {
    "convert": "Convert images, records, text or a Python Dataset into shards.",
    "inspect": "Show the samples, columns and shards of a data set.",
    "verify": "Check every byte of a data set against its checksums.",
    "merge": "Merge data sets of shards into one.",
    "export": "Write a data set of shards as TFRecord, HDF5 or WebDataset.",
    "bench": "Measure how fast a data set loads, stage by stage.",
}


@click.group(
    name="data",
    cls=LazyGroup,
    verbs=VERBS,
    modules="paceline.cli.data.",
    examples=(
        "paceline data convert photos/ shards/",
        "paceline data inspect shards/",
        "paceline data bench shards/",
    ),
)
def command() -> None:
    """Convert data sets into shards that load fast, and inspect, verify, merge, export or measure them."""
