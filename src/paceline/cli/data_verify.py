"""``paceline data verify``: is a data set what was written?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paceline import units
from paceline.cli.progress import Bar
from paceline.errors import UsageError
from paceline.report.words import count

if TYPE_CHECKING:
    from paceline.data.verify import Verified

_SHOWN = 20


@click.command(name="verify", short_help="Hold every byte of a data set against its checksum.")
@click.option("--repair", is_flag=True, help="Make the list of blocks anew, where it is missing or damaged.")
@click.argument("folder", metavar="DEST")
def command(folder: str, repair: bool) -> int:
    """Read all of a data set and hold every tar, index and sample against what was written.

    DEST is a folder, or the URL of one in a store; that is copied for it, a shard at a time.
    Exit code 1: something is not as it was written; each sample is named.
    """
    from paceline.data.folders import is_url
    from paceline.data.tokens import CONTENTS_FILE

    tokens = not is_url(folder) and (Path(folder) / CONTENTS_FILE).exists()
    if repair:
        _repair(folder, tokens=tokens)
    found = _tokens(Path(folder)) if tokens else _shards(folder)
    for text in found.problems[:_SHOWN]:
        click.echo(f"paceline: {text}", err=True)
    if len(found.problems) > _SHOWN:
        click.echo(f"paceline: and {len(found.problems) - _SHOWN:,} more", err=True)
    what = f"{count(found.samples, 'token' if tokens else 'sample')}, {units.size(found.bytes)}, as written"
    click.echo(f"{what}; {count(len(found.problems), 'problem')}" if found.problems else what)
    return 1 if found.problems else 0


def _shards(folder: str) -> Verified:
    from paceline.data.folders import is_url
    from paceline.data.sharded import ShardedDataset
    from paceline.data.verify import verify

    dataset = ShardedDataset(folder, cache=False) if is_url(folder) else ShardedDataset(folder)
    with Bar("shards") as bar:
        return verify(dataset, bar)


def _tokens(folder: Path) -> Verified:
    from paceline.data.token_shards import verify_tokens

    with Bar("files") as bar:
        return verify_tokens(folder, bar)


def _repair(folder: str, *, tokens: bool) -> None:
    """Make the list of blocks anew."""
    from paceline.data.contents import read_contents, write_contents
    from paceline.data.convert import all_blocks
    from paceline.data.folders import is_url

    if is_url(folder):
        raise UsageError(f"--repair writes, and {folder} is in a store: repair the folder that it was copied from")
    if tokens:
        raise UsageError(
            f"--repair makes lists of blocks, and {folder} holds tokens, which have none; convert it again"
        )
    contents = read_contents(Path(folder))
    write_contents(Path(folder), contents, all_blocks(Path(folder), contents))
