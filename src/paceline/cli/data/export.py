"""``paceline data export``: write shards in the format of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import DataPath
from paceline.cli.base.progress import Progress
from paceline.report.words import count

FORMATS = ("tfrecord", "hdf5", "webdataset")


@click.command(
    cls=Command,
    name="export",
    examples=(
        "paceline data export --format webdataset shards/ tars/",
        "paceline data export --format hdf5 shards/ data.h5",
    ),
    groups={"Format": ("--format",)},
)
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="Format to write.")
@click.argument("folder", type=DataPath(stores=False), metavar="SRC")
@click.argument("dest", type=DataPath(stores=False), metavar="DEST")
def command(folder: Path, dest: Path, kind: str) -> int:
    """Write a data set of shards in another format.

    SRC is a folder that `paceline data convert` wrote. DEST is a new folder, or a new file with HDF5. The bytes of
    images are copied unchanged. The command names what the other format does not keep. Class names are written to
    classes.txt, or to an attribute of the HDF5 file.
    """
    from paceline.data.convert.export import export, export_notes
    from paceline.data.reading.sharded import ShardedDataset

    dataset = ShardedDataset(folder)
    for text in export_notes(dataset, kind):
        click.echo(f"paceline: {text}", err=True)
    with Progress("samples") as progress:
        written = export(dataset, dest, kind, progress)
    click.echo(f"{count(len(dataset), 'sample')} in {count(len(written), 'file')}: {dest}")
    return 0
