"""Checkpoints that are written while training goes on: copied to host memory at the call, written by a thread.

The ranks exchange what a save needs over a process group of their own, so that these exchanges cannot meet those of
training. At most one checkpoint is written at a time.
"""

from __future__ import annotations

import sys
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.train.checkpoints.folder import CheckpointContents, save


class BackgroundSaves:
    """The checkpoint of a run that is being written; the host memory for copies is kept for the next one."""

    def __init__(self) -> None:
        self._writing: Future[None] | None = None
        self._threads: Any = None  # a pool of one, from the first save on
        self._stager: Any = None
        self._group: Any = None

    def start(self, folder: Path, contents: CheckpointContents, *, tells: bool) -> None:
        """Copy a checkpoint to host memory, and begin to write it; a collective of all ranks.

        Args:
            folder: As `save` takes it.
            contents: Of this rank.
            tells: Whether this rank prints an error as soon as it happens.

        Raises:
            EnvironmentFault: The checkpoint before could not be written.
        """
        self.finish()
        if self._threads is None:
            self._prepare()
        staged = replace(contents, tensors=self._stager.stage(contents.tensors))
        self._writing = self._threads.submit(_write, folder, staged, self._group, tells)

    def _prepare(self) -> None:
        """Make what all saves of a run share."""
        import torch
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self._threads = ThreadPoolExecutor(1, "paceline-checkpoint")
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        if torch.distributed.is_initialized():
            self._group = torch.distributed.new_group(backend="gloo")
        else:  # a filter that a thread removes again would take those of the program with it
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

    def finish(self) -> None:
        """Wait until the checkpoint is written.

        Raises:
            EnvironmentFault: It could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait until the checkpoint is written, and free the thread and the memory.

        Raises:
            EnvironmentFault: It could not be written.
        """
        try:
            self.finish()
        finally:
            if self._threads is not None:
                self._threads.shutdown()
                self._stager.close()
            self._threads = self._stager = None


def _write(folder: Path, staged: CheckpointContents, group: Any, tells: bool) -> None:
    """Write a checkpoint; an error is printed now, where this rank prints, and raised when the save is waited for."""
    try:
        save(folder, staged, group, staged=True)
    except Exception as error:
        if tells:
            sys.stderr.write(f"paceline: {error} (raised at the next save, or at the end)\n")
        raise
