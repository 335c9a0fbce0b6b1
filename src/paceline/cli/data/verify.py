"""``paceline data verify``: check a data set against its checksums."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline.cli.base.command import Command
from paceline.cli.base.files import DataPath
from paceline.cli.base.progress import Progress
from paceline.core import units
from paceline.core.errors import UsageError
from paceline.report.words import count

if TYPE_CHECKING:
    from paceline.data.convert.verify import Verified

_SHOWN = 20


@click.command(
    cls=Command,
    name="verify",
    examples=("paceline data verify shards/", "paceline data verify --repair shards/"),
    groups={"Repair": ("--repair",)},
    exit_codes={"1": "at least one sample is damaged or missing; stderr names each of these samples"},
)
@click.option(
    "--repair",
    is_flag=True,
    help="Rebuild the list of blocks before verifying. A block is a part of a shard that is read at once.",
)
@click.argument("folder", type=DataPath(), metavar="DATASET")
def command(folder: str, repair: bool) -> int:
    """Read a whole data set and check every shard, index and sample against its checksum.

    DATASET is a folder that `paceline data convert` wrote, or the URL of one in object storage, which is copied one
    shard at a time.
    """
    from paceline.data.format.folders import is_url
    from paceline.data.format.tokens import CONTENTS_FILE

    tokens = not is_url(folder) and (Path(folder) / CONTENTS_FILE).exists()
    if repair:
        _repair(folder, tokens=tokens)
    found = _tokens(Path(folder)) if tokens else _shards(folder)
    for text in found.problems[:_SHOWN]:
        click.echo(f"paceline: {text}", err=True)
    if len(found.problems) > _SHOWN:
        click.echo(f"paceline: and {len(found.problems) - _SHOWN:,} more", err=True)
    what = f"{count(found.samples, 'token' if tokens else 'sample')}, {units.size(found.bytes)} intact"
    click.echo(f"{what}; {count(len(found.problems), 'problem')}" if found.problems else what)
    return 1 if found.problems else 0


def _shards(folder: str) -> Verified:
    from paceline.data.convert.verify import verify
    from paceline.data.format.folders import is_url
    from paceline.data.reading.sharded import ShardedDataset

    dataset = ShardedDataset(folder, cache=False) if is_url(folder) else ShardedDataset(folder)
    with Progress("shards") as progress:
        return verify(dataset, progress)


def _tokens(folder: Path) -> Verified:
    from paceline.data.convert.token_shards import verify_tokens

    with Progress("files") as progress:
        return verify_tokens(folder, progress)


def _repair(folder: str, *, tokens: bool) -> None:
    """Rebuild the list of blocks of a data set."""
    from paceline.data.convert.convert import all_blocks
    from paceline.data.format.contents import read_contents, write_contents
    from paceline.data.format.folders import is_url

    if is_url(folder):
        raise UsageError(
            f"--repair cannot write to {folder}; repair the local folder from which the data set was copied"
        )
    if tokens:
        raise UsageError(
            f"--repair rebuilds the list of blocks, but the tokens in {folder} have no such list; convert the text "
            f"again"
        )
    contents = read_contents(Path(folder))
    write_contents(Path(folder), contents, all_blocks(Path(folder), contents))
