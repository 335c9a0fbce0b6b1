"""Writes folders in the MDS format by the description of the format, for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FIXED = {"int": 8, "uint8": 1, "float32": 4, "ndarray:float32:2,3": 24}  # bytes
TYPES = {"uint8": 8, "int16": 17, "float64": 66}


def _shaped(array: np.ndarray) -> bytes:
    """Number of axes and width of the shape's numbers in one byte, the shape, and the values."""
    wide = max(array.shape) > 255
    return bytes([len(array.shape) << 2 | wide]) + np.array(array.shape, "<u2" if wide else "u1").tobytes()


WRITTEN: Mapping[str, Callable[[Any], bytes]] = {
    "int": lambda value: np.int64(value).tobytes(),
    "uint8": lambda value: np.uint8(value).tobytes(),
    "float32": lambda value: np.float32(value).tobytes(),
    "str": str.encode,
    "str_int": lambda value: str(value).encode(),
    "bytes": bytes,
    "jpeg": bytes,
    "json": lambda value: json.dumps(value).encode(),
    "ndarray": lambda value: bytes([TYPES[value.dtype.name]]) + _shaped(value) + value.tobytes(),
    "ndarray:int16": lambda value: _shaped(value) + value.tobytes(),
    "ndarray:float32:2,3": lambda value: value.tobytes(),
    "pil": lambda value: (
        np.array([*value.size, len(value.mode)], "<u4").tobytes() + value.mode.encode() + value.tobytes()
    ),
    "pkl": bytes,
}


def _zstd(data: bytes) -> bytes:
    import pyarrow

    return pyarrow.compress(data, "zstd", asbytes=True)


PACKED = {"zstd:7": ("zstd", _zstd), "gz": ("gz", gzip.compress)}


def write_mds(
    folder: Path, columns: Mapping[str, str], samples: Sequence[Mapping[str, Any]], per_shard: int, packed: str | None
) -> Path:
    """Write samples into shards, and the index."""
    folder.mkdir()
    sizes = [FIXED.get(encoding) for encoding in columns.values()]
    shards = []
    for number, begin in enumerate(range(0, len(samples), per_shard)):
        own = []
        for sample in samples[begin : begin + per_shard]:
            values = [WRITTEN[encoding](sample[name]) for name, encoding in columns.items()]
            told = [len(value) for value, size in zip(values, sizes, strict=True) if size is None]
            own.append(np.array(told, "<u4").tobytes() + b"".join(values))
        description = json.dumps({"column_names": list(columns)}).encode()
        offsets = 4 * (2 + len(own)) + len(description) + np.cumsum([0, *map(len, own)])
        data = np.uint32(len(own)).tobytes() + offsets.astype("<u4").tobytes() + description + b"".join(own)
        name, zipped = f"shard.{number:05d}.mds", None
        if packed is None:
            (folder / name).write_bytes(data)
        else:
            suffix, pack = PACKED[packed]
            zipped = {"basename": f"{name}.{suffix}", "bytes": len(pack(data)), "hashes": {}}
            (folder / zipped["basename"]).write_bytes(pack(data))
        shards.append(
            {
                "column_encodings": list(columns.values()),
                "column_names": list(columns),
                "column_sizes": sizes,
                "compression": packed,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
                "samples": len(own),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": zipped,
            }
        )
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return folder
