"""``paceline data export``: shards as other tools read them."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.progress import Bar
from paceline.report.words import count

FORMATS = ("tfrecord", "hdf5", "webdataset")


@click.command(name="export", short_help="Write a data set of shards as TFRecord, HDF5 or for WebDataset.")
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="SRC")
@click.argument("dest", type=click.Path(path_type=Path), metavar="DEST")
def command(folder: Path, dest: Path, kind: str) -> int:
    """Write a data set in another format; DEST is a new folder, of HDF5 a new file.

    Nothing is lost: pictures are the bytes that are in the shards.
    """
    from paceline.data.export import export
    from paceline.data.sharded import ShardedDataset

    dataset = ShardedDataset(folder)
    with Bar("samples") as bar:
        written = export(dataset, dest, kind, bar)
    click.echo(f"{count(len(dataset), 'sample')} in {count(len(written), 'file')}: {dest}")
    return 0
