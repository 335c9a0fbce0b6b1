"""``paceline data inspect``: what a data set of shards holds."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="inspect", short_help="Say what a data set of shards holds.")
@click.argument("folder", metavar="DEST")
def command(folder: str) -> int:
    """Say what a data set holds: samples, columns, shards, pictures and how fast they can be decoded.

    DEST is a folder, or the URL of one in a store.
    """
    from paceline.data.described import described, described_tokens
    from paceline.data.folders import is_url
    from paceline.data.sharded import ShardedDataset
    from paceline.data.tokens import CONTENTS_FILE, read_tokens

    if is_url(folder):
        lines = described(ShardedDataset(folder, cache=False))
    elif (Path(folder) / CONTENTS_FILE).exists():
        lines = described_tokens(Path(folder), read_tokens(Path(folder)))
    else:
        lines = described(ShardedDataset(folder))
    for line in lines:
        click.echo(line)
    return 0
