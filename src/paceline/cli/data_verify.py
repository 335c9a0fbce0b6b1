"""``paceline data verify``: is a data set what was written?"""

from __future__ import annotations

from pathlib import Path

import click

from paceline import units
from paceline.cli.progress import Bar
from paceline.errors import UsageError
from paceline.report.words import count

_SHOWN = 20


@click.command(name="verify", short_help="Hold every byte of a data set against its checksum.")
@click.option("--repair", is_flag=True, help="Make the list of blocks anew, where it is missing or damaged.")
@click.argument("folder", metavar="DEST")
def command(folder: str, repair: bool) -> int:
    """Read all of a data set and hold every tar, index and sample against what was written.

    DEST is a folder, or the URL of one in a store; that is copied for it, a shard at a time.
    Exit code 1: something is not as it was written; each sample is named.
    """
    from paceline.data.contents import read_contents, write_contents
    from paceline.data.convert import all_blocks
    from paceline.data.folders import is_url
    from paceline.data.sharded import ShardedDataset
    from paceline.data.verify import verify

    if repair:
        if is_url(folder):
            raise UsageError(f"--repair writes, and {folder} is in a store: repair the folder that it was copied from")
        contents = read_contents(Path(folder))
        write_contents(Path(folder), contents, all_blocks(Path(folder), contents))
    dataset = ShardedDataset(folder, cache=False) if is_url(folder) else ShardedDataset(folder)
    with Bar("shards") as bar:
        found = verify(dataset, bar)
    for text in found.problems[:_SHOWN]:
        click.echo(f"paceline: {text}", err=True)
    if len(found.problems) > _SHOWN:
        click.echo(f"paceline: and {len(found.problems) - _SHOWN:,} more", err=True)
    what = f"{count(found.samples, 'sample')}, {units.size(found.bytes)}, as written"
    click.echo(f"{what}; {count(len(found.problems), 'problem')}" if found.problems else what)
    return 1 if found.problems else 0
