"""``paceline data merge``: several data sets of shards as one."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import DataPath
from paceline.cli.base.progress import Progress
from paceline.report.words import count


@click.command(
    cls=Command,
    name="merge",
    examples=(
        "paceline data merge january/ february/ all/",
        "paceline data merge shards/ more-shards/ all-shards/",
    ),
)
@click.argument("folders", type=DataPath(stores=False), metavar="SRC...", nargs=-1, required=True)
@click.argument("dest", type=DataPath(stores=False), metavar="DEST")
def command(folders: tuple[Path, ...], dest: Path) -> int:
    """Merge data sets of shards into one new data set.

    Each SRC is a folder that `paceline data convert` wrote; all have the same columns and classes. DEST is a new
    folder. Shards are copied and checked, not converted again, and the sources do not change. To continue an
    interrupted merge, run the same command again. To append samples to a data set, convert them into a folder of their
    own and merge both.
    """
    from paceline.data.convert.merge import merge
    from paceline.data.reading.sharded import ShardedDataset

    datasets = [ShardedDataset(folder) for folder in folders]
    with Progress("samples") as progress:
        contents = merge(datasets, dest, progress)
    click.echo(f"{count(contents.samples, 'sample')} in {count(len(contents.shards), 'shard')}: {dest}")
    return 0
