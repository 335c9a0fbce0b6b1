"""What does this rank do right now? One object, which all that is patched asks."""

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

_LIBRARIES = (*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")), sys.prefix)
_MOST_WRITTEN = 1 << 16  # places in memory


class Refusal(SystemExit):
    """The program cannot be spread; the exit code is 2."""

    code = 2

    def __init__(self) -> None:
        super().__init__(self.code)


class Spread:
    """This rank among the others.

    Attributes:
        off: The program spreads itself by a library of its own, or is at its end.
        nested: A call of a model is going on; modules inside it are left alone.
        split: It has a part of the rows only.
        backward: How many backward passes are going on, one in the other.
    """

    def __init__(self, torch: Any, place: Any) -> None:
        self.torch = torch
        self.layout: Layout = parse(place["layout"])
        self.rank, self.ranks = int(place["rank"]), int(place["ranks"])
        self.folder, self.seed, self.port = str(place["folder"]), int(place["seed"]), int(place["port"])
        self.devices: str | None = place["devices"]  # CUDA_VISIBLE_DEVICES as the program would have had it
        self.off = self.nested = self.split = self.last_split = False
        self.refused = self.failed = False
        self.reading = False  # a batch is made: a model that does so has other rows on each rank
        self.backward = 0
        self.loss_only = False  # of what a model returns, nothing but the loss is used
        self.on_trial = 0  # calls of a model are made to be compared
        self.calls = 0  # of models that train, in parts
        self.writes = 0  # of the program's operators to split tensors
        self.written: dict[int, int] = {}  # memory of a piece -> number of the last write to it
        self.operands = 0  # a digest of all that the program has computed with split weights
        self._pid = os.getpid()

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that is seen."""
        return self.rank == 0

    def acts(self) -> bool:
        """Whether a call of a model from here is one to split."""
        return not (self.off or self.nested or self.backward or self.reading) and os.getpid() == self._pid

    @contextmanager
    def inside(self, *, split: bool) -> Iterator[None]:
        """Stand inside a call of a model."""
        self.nested, self.split, self.last_split = True, split, split
        try:
            yield
        finally:
            self.nested = self.split = False

    @property
    def has_part(self) -> bool:
        """Whether what a module sees now is a part of the rows: also where backward computes a block again."""
        return self.split or (self.backward > 0 and self.last_split)

    def note_write(self, memory: int) -> None:
        """Note that an operator of the program changes the piece of a split tensor that lies there."""
        self.writes += 1
        self.written.pop(memory, None)
        self.written[memory] = self.writes
        if len(self.written) > _MOST_WRITTEN:
            del self.written[next(iter(self.written))]

    def trial_over(self) -> None:
        """Note the end of calls that are made to be compared."""
        self.on_trial -= 1

    def tell(self, what: str) -> None:
        """Note something for the end of the run."""
        if self.leads:
            note(what)

    def refuse(self, why: str, *, alone: bool = False) -> NoReturn:
        """End the program before it trains wrongly.

        Args:
            why: The reason.
            alone: Other ranks do not refuse at this point, so that the process has to end at once.

        Raises:
            Refusal: Always.
        """
        self.refused = True
        sys.stdout.flush()
        os.write(2, f"paceline: --layout {self.layout}: {why}\n".encode())
        if alone or threading.current_thread() is not threading.main_thread():
            os._exit(Refusal().code)  # else only the thread would end
        raise Refusal


def note(what: str) -> None:
    """Write a line beside the record."""
    from paceline.train.unmodified import NOTES

    with open(os.path.join(os.environ.get("PACELINE_WATCH_DIR", "."), NOTES), "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def memory_of(value: Any) -> int:
    """Return the address of the memory in which this rank's piece of a split tensor lies."""
    return int(value._local_tensor.untyped_storage().data_ptr())


def check_hooks(spread: Spread, weight: Any) -> None:
    """Refuse a hook on a weight."""
    if weight._backward_hooks:
        spread.refuse(
            "a hook on a weight (register_hook) would get the gradient of one rank only; change gradients between "
            "backward() and the optimizer step, for example with torch.nn.utils.clip_grad_value_"
        )


@functools.cache
def is_own_file(file: str) -> bool:
    """Return whether a source file is the program's own: of no library, and not of Paceline."""
    ours = __file__.rpartition("/train/")[0]
    return not file.startswith((*_LIBRARIES, ours, "<")) and "-packages/" not in file
