"""Arrays of a Zarr store whose first axis is samples. Rows are read chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from paceline.core.errors import EnvironmentFault, UsageError

_KEPT_BYTES = 64 << 20  # of chunks in memory, for each array
_MARKS = (".zgroup", ".zarray", ".zmetadata", "zarr.json")


def is_zarr(path: Path) -> bool:
    """Return whether a folder is a Zarr store."""
    return any((path / mark).is_file() for mark in _MARKS)


def of_zarr(path: Path) -> dict[str, Any]:
    """Return the arrays of a store by their paths in the store.

    Raises:
        UsageError: The folder is no store, or has no arrays.
        EnvironmentFault: zarr is not installed.
    """
    try:
        import zarr
    except ImportError as error:
        raise EnvironmentFault("Zarr stores need zarr: pip install 'paceline[formats]'") from error
    try:
        opened: Any = zarr.open(str(path), mode="r")
    except Exception as error:
        raise UsageError(f"{path} cannot be read as Zarr: {error}") from error
    found = {path.stem: Rows(opened)} if hasattr(opened, "shape") else {name: Rows(one) for name, one in _below(opened)}
    if not found:
        raise UsageError(f"{path} has no arrays")
    return found


def _below(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, array in sorted(group.arrays()):
        yield f"{before}{name}", array
    for name, inner in sorted(group.groups()):
        yield from _below(inner, f"{before}{name}/")


class Rows:
    """A Zarr array that returns single rows, and reads and caches whole chunks."""

    def __init__(self, own: Any) -> None:
        """Wrap an array of the package zarr."""
        self._own = own
        self._name = str(own.name or "").strip("/")
        self.ndim, self.dtype, self.shape, self.chunks = own.ndim, own.dtype, own.shape, own.chunks
        self._together = max(1, own.chunks[0]) if own.ndim else 1
        chunk_bytes = max(1, self._together * own.nbytes // max(1, own.shape[0] if own.ndim else 1))
        self._read = lru_cache(max(1, _KEPT_BYTES // int(chunk_bytes)))(self._rows)

    @property
    def missing_chunks(self) -> int:
        """The number of chunks that are not stored: their values are the fill value, or the chunks were lost."""
        return max(0, int(self._own.nchunks) - int(self._own.nchunks_initialized))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, number: int) -> Any:
        return self._read(number // self._together)[number % self._together]

    def _rows(self, chunk: int) -> Any:
        begin = chunk * self._together
        try:
            return self._own[begin : begin + self._together]
        except Exception as error:  # the codecs of Zarr raise errors of any type
            end = min(begin + self._together, len(self))
            named = f" of array {self._name}" if self._name else ""
            raise ValueError(f"the chunk of rows {begin:,} to {end - 1:,}{named}: {error}") from error
