"""A dataset of tokens: samples are windows of files of token ids.

A sample of length n has n + 1 tokens: the inputs of the model, and the target after each input. Consecutive windows
share one token.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from paceline.core.errors import UsageError
from paceline.data.format.folders import is_url, local_name
from paceline.data.format.index import UNREADABLE, DamagedData
from paceline.data.format.tokens import TokenShard, read_tokens

Numbers = NDArray[np.int64]


class TokenDataset:
    """Windows of consecutive tokens. Reading is safe from several threads."""

    def __init__(self, folder: str | os.PathLike[str], length: int, dtype: str | None = "int64") -> None:
        """Open a folder that `paceline data convert` wrote from text.

        Args:
            folder: The folder.
            length: The length of a sample in tokens, without the last target.
            dtype: The type of samples; None for the stored type, two bytes per token if the vocabulary allows.

        Raises:
            UsageError: The folder has no tokens, or fewer than a sample needs, or the type cannot hold all tokens.
            DamagedData: The description cannot be read.
        """
        if is_url(folder):
            raise UsageError(
                f"{folder} is in a store, and tokens are read from local folders only; copy it to a folder"
            )
        self.folder, self.length, self._dtype = Path(local_name(folder)), length, dtype
        self.contents = read_tokens(self.folder)
        if dtype is not None:
            _check_type(dtype, self.contents.vocabulary)
        if length < 1 or not len(self):
            raise UsageError(f"{folder} has {self.contents.tokens:,} tokens, too few for one sample of {length:,}")

    def __len__(self) -> int:
        return int(self._first[-1])

    def __reduce__(self) -> tuple[type[TokenDataset], tuple[Path, int, str | None]]:
        return type(self), (self.folder, self.length, self._dtype)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one sample, of shape [length + 1]."""
        row: NDArray[Any] = self.batch(np.array([number]))[0]
        return row

    @property
    def dtype(self) -> str:
        """The NumPy name of the type of samples."""
        return self._dtype or self.contents.dtype

    def batch(self, ids: Numbers) -> NDArray[Any]:
        """Return samples, of shape [samples, length + 1].

        Raises:
            DamagedData: A token is not in the vocabulary.
        """
        if len(self._windows) == 1:
            found = self._checked(self._windows[0][ids])
            return found if self._dtype is None else found.astype(self._dtype, copy=False)
        shards = np.searchsorted(self._first, ids, side="right") - 1
        made = np.empty((len(ids), self.length + 1), self.dtype)
        for shard in np.unique(shards).tolist():
            own = shards == shard
            made[own] = self._checked(self._windows[shard][ids[own] - self._first[shard]])
        return made

    def _checked(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return the same tokens after a check that all are in the vocabulary. Other damage is not noticed here."""
        if tokens.size and int(tokens.max()) >= self.contents.vocabulary:
            raise DamagedData(
                f"{self.folder} is damaged: it has the token {int(tokens.max())}, and the vocabulary has "
                f"{self.contents.vocabulary:,}; `paceline data verify` names the file"
            )
        return tokens

    @cached_property
    def _first(self) -> Numbers:
        """The number of each shard's first sample, and the number of all samples."""
        counts = [max(0, (shard.tokens - 1) // self.length) for shard in self.contents.shards]
        return np.append(0, np.cumsum(counts)).astype(np.int64)

    @cached_property
    def _windows(self) -> list[NDArray[Any]]:
        """All samples of each shard, as views of its file."""
        found = []
        for shard, count in zip(self.contents.shards, np.diff(self._first).tolist(), strict=True):
            tokens = _mapped(self.folder / shard.file, shard, self.contents.dtype)
            step = tokens.strides[0]
            found.append(as_strided(tokens, (count, self.length + 1), (self.length * step, step), writeable=False))
        return found


def _check_type(dtype: str, vocabulary: int) -> None:
    """Check that an integer type of NumPy holds all tokens of a vocabulary."""
    try:
        kind = np.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"{dtype!r} is no type of NumPy; use int64, int32 or uint16") from error
    if kind.kind not in "iu" or np.iinfo(kind).max < vocabulary - 1:
        raise UsageError(f"{dtype} cannot hold the {vocabulary:,} tokens of the vocabulary; use int64")


def _mapped(path: Path, shard: TokenShard, dtype: str) -> NDArray[Any]:
    try:
        tokens: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise DamagedData(f"{path} cannot be read ({error}); convert the text again") from error
    if tokens.shape != (shard.tokens,) or tokens.dtype != dtype:
        raise DamagedData(f"{path} has {tokens.shape} of {tokens.dtype}, but {shard.tokens:,} of {dtype} were written")
    return np.asarray(tokens)
