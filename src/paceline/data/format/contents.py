"""Reading and writing of a dataset's description, `dataset.json`, and of its table of blocks."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.core.files import write_durably
from paceline.data.format.index import UNREADABLE, DamagedData, ShardIndex, read_index
from paceline.data.format.model import BLOCKS_FILE, CONTENTS_FILE, SCHEMA, Contents, shown

BLOCK_BYTES = 2 << 20  # the target size of a block
# One row for each block: shard, number of the first sample in the dataset, begin and end in the shard's file (bytes).
BLOCK_ROW = np.dtype([("shard", np.int32), ("first", np.int64), ("begin", np.int64), ("end", np.int64)])

Blocks = NDArray[np.void]


def read_contents(folder: Path) -> Contents:
    """Read the description of a dataset.

    Raises:
        UsageError: The folder has no dataset, or does not exist.
        EnvironmentFault: The file cannot be read.
        DamagedData: The description is damaged, or comes from a newer version.
    """
    path = folder / CONTENTS_FILE
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if (folder / "tokens.json").exists():
            raise UsageError(
                f"{folder} holds tokens: read them with TokenDataset({str(folder)!r}, length); to put tokens together, "
                "convert the texts together, or use paceline.data.Mix"
            ) from error
        if folder.is_file():
            raise UsageError(f"{folder} is a file, not a folder of shards: {_as_it_is(folder)}") from error
        said = "its conversion is unfinished, or it is not a data set" if folder.is_dir() else "there is no such folder"
        other = f"; of files in another format: {_as_it_is(folder)}" if folder.is_dir() else ""
        raise UsageError(
            f"no {CONTENTS_FILE} in {folder}: {said}; `paceline data convert SRC {folder}` makes one{other}"
        ) from error
    except OSError as error:
        raise EnvironmentFault(
            f"cannot read {path}: {error.strerror or error}; give a folder that `paceline data convert` wrote"
        ) from error
    return contents_in(text, str(path))


def _as_it_is(path: Path) -> str:
    return (
        f"`paceline data convert {path} SHARDS` converts it, and FileDataset({str(path)!r}) reads it without conversion"
    )


def contents_in(text: bytes, path: str) -> Contents:
    """Return the content of a `dataset.json`.

    Args:
        text: The bytes of the file.
        path: Its path or URL, for messages.

    Raises:
        DamagedData: The content is damaged, or comes from a newer version.
    """
    try:
        found = msgspec.json.decode(text, type=Contents)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedData(f"{path} cannot be read: {error}") from error
    if found.schema != SCHEMA:
        raise DamagedData(
            f"{path} has schema {found.schema!r}, and this version reads {SCHEMA!r}; a newer Paceline may read it"
        )
    outside = [shard.file for shard in found.shards if shard.file != os.path.basename(shard.file)]
    if outside:
        raise DamagedData(f"{path} lists shards that are not in its folder: {outside[0]!r}; convert the data set again")
    if found.checksum and found.checksum != _checksum(found):
        raise DamagedData(
            f"{path} is damaged: its checksum does not match; copy it again, or convert the data set again"
        )
    if sum(shard.samples for shard in found.shards) != found.samples:
        raise DamagedData(f"{path} is damaged: its number of samples ({found.samples:,}) is not that of its shards")
    return found


def write_contents(folder: Path, contents: Contents, blocks: Blocks) -> None:
    """Write the table of blocks and then `dataset.json`, which makes the folder a dataset."""
    packed = io.BytesIO()
    np.save(packed, blocks)
    write_durably(folder / BLOCKS_FILE, packed.getvalue())
    text = msgspec.json.format(msgspec.json.encode(replace(contents, checksum=_checksum(contents))), indent=1)
    write_durably(folder / CONTENTS_FILE, text)


def check_classes(classes: Sequence[str]) -> None:
    """Check that a `dataset.json` can hold the names of classes.

    Raises:
        UsageError: A name is not UTF-8, such as that of a folder from a system with another encoding.
    """
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the name of the class {shown(name)} is not UTF-8; rename its folder, such as with convmv"
            ) from error


def _checksum(contents: Contents) -> int:
    """Return a CRC-32 of the other fields of a `dataset.json`; 1 in place of 0."""
    return zlib.crc32(msgspec.json.encode(replace(contents, checksum=0))) or 1


def read_blocks(folder: Path, contents: Contents) -> Blocks:
    """Read the table of blocks of a folder with the given description.

    Raises:
        DamagedData: The table is missing or damaged.
    """
    return blocks_in(folder / BLOCKS_FILE, contents, f"{folder / BLOCKS_FILE}", str(folder))


def blocks_in(file: Path | BinaryIO, contents: Contents, path: str, folder: str) -> Blocks:
    """Return the table of blocks in a file.

    Args:
        file: The file.
        contents: The description of the dataset.
        path: The path or URL of the file, for messages.
        folder: The folder of the dataset, for messages.

    Raises:
        DamagedData: The file is damaged.
    """
    try:
        found = np.load(file, allow_pickle=False)
    except UNREADABLE as error:
        raise DamagedData(
            f"{path} cannot be read ({error}); `paceline data verify {folder} --repair` rebuilds it"
        ) from error
    if found.dtype != BLOCK_ROW or not len(found):
        raise DamagedData(f"{path} is not a list of blocks; `paceline data verify {folder} --repair` rebuilds it")
    wrong = _wrong_blocks(found, contents)
    if wrong.any():
        raise DamagedData(
            f"{path} is damaged: block {int(np.argmax(wrong)):,} is not in its shard; `paceline data verify {folder} "
            "--repair` rebuilds it"
        )
    return found


def _wrong_blocks(blocks: Blocks, contents: Contents) -> NDArray[np.bool_]:
    """Return for each block whether it has no samples, other samples than its shard, or bytes outside of its shard."""
    sizes = np.array([shard.bytes for shard in contents.shards], np.int64)
    firsts = np.append(0, np.cumsum([shard.samples for shard in contents.shards]))
    first, after = blocks["first"], np.append(blocks["first"][1:], contents.samples)
    shard = np.searchsorted(firsts, first, side="right") - 1
    wrong = (first >= after) | (first < 0) | (first >= contents.samples) | (blocks["shard"] != shard)
    wrong |= first != np.where(np.append(-1, blocks["shard"][:-1]) != blocks["shard"], firsts[shard], first)
    ends = sizes[shard.clip(0, len(sizes) - 1)]
    return wrong | (blocks["begin"] < 0) | (blocks["begin"] > blocks["end"]) | (blocks["end"] > ends)


def read_shard_index(folder: Path, shard_file: str, index_file: str, crc32: int | None = None) -> ShardIndex:
    """Read the index of a shard.

    Args:
        folder: The folder of the dataset.
        shard_file: The file name of the shard, for messages.
        index_file: The file name of the index.
        crc32: The checksum of the index in `dataset.json`; None if it is not known.

    Raises:
        DamagedData: The index is missing, cannot be read, or is not the one that belongs to the dataset.
    """
    try:
        packed = (folder / index_file).read_bytes()
    except OSError as error:
        raise DamagedData(
            f"{folder / index_file}, the index of {shard_file}, cannot be read: {error.strerror}"
        ) from error
    if crc32 is not None and zlib.crc32(packed) != crc32:
        raise DamagedData(
            f"{folder / index_file}, the index of {shard_file}, is not that of this data set: its checksum is not the "
            f"one in {CONTENTS_FILE}; copy the whole data set again"
        )
    return read_index(shard_file, packed)


def blocks_of(shard: int, first: int, index: ShardIndex, columns: list[str], block_bytes: int = BLOCK_BYTES) -> Blocks:
    """Divide a shard into blocks of whole samples.

    Args:
        shard: The number of the shard.
        first: The number of the shard's first sample in the dataset.
        index: The index of the shard.
        columns: The names of the columns with bytes.
        block_bytes: The most bytes of a block; a block with a single sample may have more.
    """
    if not columns:  # only numbers, which are in the index
        return np.array([(shard, first, 0, 0)], BLOCK_ROW)
    begins = np.min([_of(index, name, "offset") for name in columns], axis=0)
    ends = np.max([_of(index, name, "offset") + _of(index, name, "length") for name in columns], axis=0)
    rows, begin = [], 0
    while begin < len(begins):
        after = max(begin + 1, int(np.searchsorted(ends, begins[begin] + block_bytes, side="right")))
        rows.append((shard, first + begin, int(begins[begin]), int(ends[after - 1])))
        begin = after
    return np.array(rows, BLOCK_ROW)


def _of(index: ShardIndex, name: str, key: str) -> NDArray[np.int64]:
    found = index.column(name, key)
    if found is None:
        raise DamagedData(f"the index of {index.shard} has no {name}.{key}; convert the data set again")
    return found.astype(np.int64)
