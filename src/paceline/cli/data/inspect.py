"""``paceline data inspect``: show the contents of a data set of shards."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import DataPath


@click.command(
    cls=Command,
    name="inspect",
    examples=("paceline data inspect shards/", "paceline data inspect s3://bucket/shards"),
)
@click.argument("folder", type=DataPath(), metavar="DATASET")
def command(folder: str) -> int:
    """Show the samples, columns and shards of a data set, and how fast its images can be decoded.

    DATASET is a folder that `paceline data convert` wrote, or the URL of one in object storage.
    """
    from paceline.data.convert.describe import describe, describe_tokens
    from paceline.data.format.folders import is_url
    from paceline.data.format.tokens import CONTENTS_FILE, read_tokens
    from paceline.data.reading.sharded import ShardedDataset

    if is_url(folder):
        lines = describe(ShardedDataset(folder, cache=False))
    elif (Path(folder) / CONTENTS_FILE).exists():
        lines = describe_tokens(Path(folder), read_tokens(Path(folder)))
    else:
        lines = describe(ShardedDataset(folder))
    for line in lines:
        click.echo(line)
    return 0
