"""States of random numbers: torch's on the CPU and on this rank's GPU, NumPy's and Python's.

Ranks with the same samples draw the same numbers, but within the model where they hold other parts of the sequence or
other layers: there they draw from a stream of their own, so that dropout masks differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

State = dict[str, Any]  # by the names below
_apart: list[bool] = []  # not empty while draws are not the model's


@contextmanager
def apart() -> Iterator[None]:
    """Have draws and exchanges inside not count as the model's."""
    _apart.append(True)
    try:
        yield
    finally:
        _apart.pop()


def is_apart() -> bool:
    """Return whether a draw or an exchange of now is not the model's."""
    return bool(_apart)


def of_torch(device: Any) -> State:
    """Return the states of torch's random numbers, on the CPU and on a device that is a GPU."""
    import torch

    found = {"cpu": torch.get_rng_state()}
    return {**found, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else found


def of_host() -> State:
    """Return the states of NumPy's (where it is imported) and Python's random numbers."""
    numpy = sys.modules.get("numpy")
    found: State = {"python": random.getstate()}
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found["numpy"] = (name, [int(key) for key in keys], *rest)
    return found


def of_seed(seed: int, device: Any) -> State:
    """Return the states that torch's random numbers begin with for a seed."""
    import torch

    made = {"cpu": torch.Generator().manual_seed(seed).get_state()}
    if device.type == "cuda":
        made["cuda"] = torch.Generator(device).manual_seed(seed).get_state()
    return made


def host_of_seed(seed: int) -> State:
    """Return the states that NumPy's and Python's random numbers begin with for a seed."""
    found: State = {"python": random.Random(seed).getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.RandomState(seed).get_state()
        found["numpy"] = (name, [int(key) for key in keys], *rest)
    return found


def put(state: State, device: Any = None) -> None:
    """Go on from states, of those that are given.

    Args:
        state: As the functions above return them.
        device: The GPU that a state of one is of.
    """
    import torch

    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if "python" in state:
        random.setstate(_as_tuples(state["python"]))
    if "numpy" in state and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(tuple(state["numpy"]))


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(part) for part in value) if isinstance(value, tuple | list) else value


def mixed(*parts: Any) -> int:
    """Return a seed that depends on all parts, of 32 bits."""
    return crc32(repr(parts).encode())


class Stream:
    """Random numbers that are drawn inside a block, apart from those outside."""

    def __init__(self, state: State, device: Any) -> None:
        """Begin with states; those that are not among them are drawn on inside as outside."""
        self.state = state
        self._device = device

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw from this stream inside."""
        outside = self._now()
        put(self.state, self._device)
        try:
            yield
        finally:
            self.state = self._now()
            put(outside, self._device)

    def _now(self) -> State:
        of_both = of_torch(self._device) if "cpu" in self.state else {}
        return {**of_both, **(of_host() if "python" in self.state else {})}


class Split:
    """Random numbers of a rank between matrices that tp splits, where each rank has other heads or hidden units.

    Before and after, ranks of a tp group draw the same. A rank's own numbers follow from the common ones, so that a
    block that is computed again draws them again; the common ones go on where some were drawn in between.
    """

    def __init__(self, rank: int, device: Any) -> None:
        """Begin for a rank of a tp group, with its `torch.device`."""
        self._rank = rank
        self._device = device
        self._common: State | None = None
        self._begun: State = {}
        self._first: set[int] = set()  # modules that are the first ones of their part

    def enter(self, module: Any, *_: Any) -> None:
        """Draw apart from here on: after a matrix that is split by columns."""
        if not module.training or (self._common is not None and id(module) not in self._first):
            return
        self._first.add(id(module))
        self._common = of_torch(self._device)
        seed = mixed(self._rank, *(crc32(state.numpy().tobytes()) for state in self._common.values()))
        self._begun = of_seed(seed, self._device)
        put(self._begun, self._device)

    def leave(self, *_: Any) -> None:
        """Draw together again: before a matrix that is split by rows."""
        import torch

        if self._common is None:
            return
        drawn, common = of_torch(self._device), self._common
        self._common = None
        put(common, self._device)
        for kind, state in drawn.items():
            if not torch.equal(state, self._begun[kind]):
                with apart():
                    torch.rand((), device=self._device if kind == "cuda" else "cpu")
