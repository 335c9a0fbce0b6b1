"""The state of this rank, shared by all patches: its position, and what the program does at the moment."""

from __future__ import annotations

import functools
import json
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from paceline.core.layout import Layout, parse
from paceline.train.ranks.open_files import write_files

_LIBRARIES = (*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")), sys.prefix)
_MOST_WRITTEN = 1 << 16  # addresses that are remembered


class Refusal(SystemExit):
    """Ends a program that cannot be trained with the layout; the exit code is 2."""

    code = 2

    def __init__(self) -> None:
        super().__init__(self.code)


class Spread:
    """The state of this rank: its position, and what the program does at the moment.

    Attributes:
        off: Whether the patches are off: another library distributes the program, or the program ends.
        nested: Whether a call of a model runs; calls of modules inside it are not split.
        split: Whether the running call has only this rank's rows.
        backward: The number of nested backward passes that run.
    """

    def __init__(self, torch: Any, place: Any) -> None:
        self.torch = torch
        self.layout: Layout = parse(place["layout"])
        self.rank, self.ranks = int(place["rank"]), int(place["ranks"])
        self.folder, self.seed = str(place["folder"]), int(place["seed"])
        self.devices: str | None = place["devices"]  # CUDA_VISIBLE_DEVICES of the launcher
        self.off = self.nested = self.split = self.last_split = False
        self.refused = self.failed = False
        self.reading = False  # samples are read; models called there have this rank's rows
        self.backward = 0
        self.loss_only = False  # whether the program uses only the loss of a model's outputs
        self.on_trial = 0  # the number of nested trial calls
        self.hooks = 0  # hooks that the program has registered on tensors in the running call of a model
        self.calls = 0  # split calls of models in training
        self.writes = 0  # in-place changes of sharded tensors by the program
        self.written: dict[int, int] = {}  # address of a shard -> number of the last write
        self.operands = 0  # a digest of all operations of the program with sharded weights
        self._pid = os.getpid()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which prints and writes for the program."""
        return self.rank == 0

    def acts(self) -> bool:
        """Return whether a call of a model at this point must be split."""
        return not (self.off or self.nested or self.backward or self.reading) and os.getpid() == self._pid

    @contextmanager
    def inside(self, *, split: bool) -> Iterator[None]:
        """Return a context for a running call of a model; `split` tells whether the call gets only this rank's rows."""
        self.nested, self.split, self.last_split = True, split, split
        try:
            yield
        finally:
            self.nested = self.split = False

    @property
    def has_part(self) -> bool:
        """Whether modules get only this rank's rows now, also when the backward pass recomputes a block."""
        return self.split or (self.backward > 0 and self.last_split)

    def note_write(self, memory: int) -> None:
        """Note that the program changes this rank's shard of a tensor.

        Args:
            memory: The address of the shard, from `memory_of`.
        """
        self.writes += 1
        self.written.pop(memory, None)
        self.written[memory] = self.writes
        if len(self.written) > _MOST_WRITTEN:
            del self.written[next(iter(self.written))]

    def trial_over(self) -> None:
        """Note that a context of trial calls has ended."""
        self.on_trial -= 1

    def tell(self, what: str) -> None:
        """Write a note that is shown at the end of the run; only rank 0 writes."""
        if self.leads:
            note(what)

    def refuse(self, why: str, *, alone: bool = False) -> NoReturn:
        """End the program with a message and exit code 2, before it computes wrong results.

        Args:
            why: The reason, and what to do instead.
            alone: Whether only this rank ends here.

        Raises:
            Refusal: In the main thread, unless `alone` is set; otherwise the process exits at once.
        """
        self.refused = True
        sys.stdout.flush()
        os.write(2, f"paceline: --layout {self.layout}: {why}\n".encode())
        if alone or threading.current_thread() is not threading.main_thread():
            write_files()
            os._exit(Refusal().code)  # an exception would end only the thread
        raise Refusal


def note(what: str) -> None:
    """Append a note about the layout to the file `NOTES` in the run's folder."""
    from paceline.train.unmodified import NOTES

    with open(os.path.join(os.environ.get("PACELINE_WATCH_DIR", "."), NOTES), "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def memory_of(value: Any) -> int:
    """Return the memory address of this rank's shard of a tensor."""
    return int(value._local_tensor.untyped_storage().data_ptr())


def check_hooks(spread: Spread, weight: Any) -> None:
    """End the program if a weight has a gradient hook, which would get the gradient of one rank only."""
    if weight._backward_hooks:
        spread.refuse(
            "a hook on a weight (register_hook) would get the gradient of one rank only; change gradients between "
            "backward() and the optimizer step, for example with torch.nn.utils.clip_grad_value_"
        )


@functools.cache
def is_own_file(file: str) -> bool:
    """Return whether a source file belongs to the program, not to a library or to Paceline."""
    ours = __file__.rpartition("/train/")[0]
    return not file.startswith((*_LIBRARIES, ours, "<")) and "-packages/" not in file


def plain_settings(part: Any) -> dict[str, Any]:
    """Return the attributes of a module that are plain Python values, such as a rate or a counter."""
    return {name: value for name, value in vars(part).items() if isinstance(value, bool | int | float | str)}
