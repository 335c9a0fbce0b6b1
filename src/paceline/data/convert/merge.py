"""Merging of sharded datasets into a new one: shards are copied unchanged, and checked against their checksums."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import replacing
from paceline.data.convert.convert import write_data_set
from paceline.data.convert.resuming import Note, alone_in, check_folder, clear, is_as_written, write_note
from paceline.data.format.index import DamagedData
from paceline.data.format.model import Contents, Shard
from paceline.data.reading.merged import MergedShards
from paceline.data.reading.sharded import ShardedDataset

Progress = Callable[[int, int], None]


def merge(parts: Sequence[ShardedDataset], dest: Path, progress: Progress) -> Contents:
    """Write several datasets, one after the other, as one new dataset.

    An interrupted merge is resumed: existing shards with the right checksums are not copied again.

    Args:
        parts: Two or more datasets on this machine, with the same columns and classes.
        dest: A new or empty folder, or the folder of the same interrupted merge.
        progress: Is called with the number of merged samples and of all samples.

    Returns:
        The description of the new dataset.

    Raises:
        UsageError: The columns or classes differ, or the folder has other content.
        DamagedData: A shard does not match its checksum.
        EnvironmentFault: The folder cannot be written.
    """
    if len(parts) < 2:
        raise UsageError("a merge needs two data sets or more; name them before the new folder")
    merged = MergedShards(parts).contents
    mark = f"merge {[(shard.samples, shard.crc32, shard.index_crc32) for shard in merged.shards]}"
    check_folder(dest, mark)
    shards: list[Shard] = []
    with alone_in(dest, mark):
        done = 0
        for number, shard in enumerate(merged.shards):
            shards.append(_copied(shard, dest, f"shard-{number:06d}.tar"))
            write_note(dest, Note(shard=shards[-1], skipped=[]))
            done += shard.samples
            progress(done, merged.samples)
        contents = write_data_set(dest, replace(merged, shards=shards, made={"merged": len(parts), "mixed": False}))
        clear(dest)
    return contents


def _copied(shard: Shard, dest: Path, name: str) -> Shard:
    """Copy a shard and its index, and return the description of the copy."""
    made = replace(shard, file=name)
    if is_as_written(dest, made):
        return made
    try:
        for source, target in ((shard.index, made.index), (shard.file, made.file)):
            with replacing(dest / target) as copy:
                shutil.copyfile(source, copy)
        if is_as_written(dest, made):
            return made
    except BaseException as error:
        _remove(dest, made)
        if isinstance(error, OSError):
            raise EnvironmentFault(
                f"cannot copy {shard.file} to {dest}: {error.strerror or error}; run the command again to go on"
            ) from error
        raise
    _remove(dest, made)
    raise DamagedData(
        f"{shard.file} is not what was written: its checksum does not match; `paceline data verify "
        f"{Path(shard.file).parent}` names the samples"
    )


def _remove(dest: Path, shard: Shard) -> None:
    for name in (shard.file, shard.index):
        (dest / name).unlink(missing_ok=True)
