"""Random states: torch's on the CPU and on this rank's GPU, NumPy's and Python's.

Ranks with the same samples draw the same numbers, except within the model if they hold other parts of the
sequence or other layers: there each rank draws from its own stream, so that dropout masks differ.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

State = dict[str, Any]  # by the keys that the functions below use
_apart: list[bool] = []  # not empty inside `apart()`
_in_stream: list[bool] = []  # not empty while numbers are drawn from a `Stream`


@contextmanager
def apart() -> Iterator[None]:
    """Mark random draws and exchanges inside the context as Paceline's own, not the model's."""
    _apart.append(True)
    try:
        yield
    finally:
        _apart.pop()


def is_apart() -> bool:
    """Return whether the current draws and exchanges are Paceline's own, not the model's."""
    return bool(_apart)


def in_stream() -> bool:
    """Return whether random numbers are drawn from a separate stream now, as in the passes of a pipeline stage."""
    return bool(_in_stream)


def of_torch(device: Any) -> State:
    """Return torch's random states: of the CPU, and of the device if it is a GPU."""
    import torch

    found = {"cpu": torch.get_rng_state()}
    return {**found, "cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else found


def of_host() -> State:
    """Return the random states of Python, and of NumPy if it is imported."""
    numpy = sys.modules.get("numpy")
    found: State = {"python": random.getstate()}
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        found["numpy"] = (name, [int(key) for key in keys], *rest)
    return found


def of_seed(seed: int, device: Any) -> State:
    """Return the random states of torch for a seed."""
    import torch

    made = {"cpu": torch.Generator().manual_seed(seed).get_state()}
    if device.type == "cuda":
        made["cuda"] = torch.Generator(device).manual_seed(seed).get_state()
    return made


def host_of_seed(seed: int) -> State:
    """Return the random states of Python, and of NumPy if it is imported, for a seed."""
    found: State = {"python": random.Random(seed).getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.RandomState(seed).get_state()
        found["numpy"] = (name, [int(key) for key in keys], *rest)
    return found


def put(state: State, device: Any = None) -> None:
    """Set the given random states.

    Args:
        state: Random states, as `of_torch` and `of_host` return them.
        device: The GPU of the ``cuda`` state.
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
    """Return a 32-bit seed that depends on all arguments."""
    return crc32(repr(parts).encode())


class Stream:
    """A random stream that is used inside a context and does not affect draws outside."""

    def __init__(self, state: State, device: Any) -> None:
        """Create a stream.

        Args:
            state: The initial random states. Generators without a state here are not separated.
            device: The `torch.device` of the rank.
        """
        self.state = state
        self._device = device

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw from this stream inside the context."""
        outside = self._now()
        put(self.state, self._device)
        _in_stream.append(True)
        try:
            yield
        finally:
            _in_stream.pop()
            self.state = self._now()
            put(outside, self._device)

    def _now(self) -> State:
        of_both = of_torch(self._device) if "cpu" in self.state else {}
        return {**of_both, **(of_host() if "python" in self.state else {})}


class CommonDraws:
    """Gives the ranks the random numbers of the first rank in a function that may draw, such as an optimizer step."""

    def __init__(self, group: Any, device: Any) -> None:
        """Store the arguments.

        Args:
            group: The process group of the ranks; None for no common numbers.
            device: The `torch.device` of the rank.
        """
        self._group, self._device = group, device
        self._calls, self._draws = 0, False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw the numbers of the first rank inside the context; the other ranks then continue with their own.

        States are exchanged in calls 1, 2, 4, 8 and so on, and in every call after one of these that drew numbers.
        """
        self._calls += 1
        if self._group is None or not self._draws and self._calls & (self._calls - 1):
            yield
            return
        own, first = self._now(), self._of_first_rank()
        put(first, self._device)
        try:
            yield
        finally:
            now = self._now()
            self._draws = self._draws or any(not _is_same(first[kind], now[kind]) for kind in first)
            if not self._is_first():
                put(own, self._device)

    def _now(self) -> State:
        return {**of_torch(self._device), **of_host()}

    def _of_first_rank(self) -> State:
        import torch

        found = [self._now()]
        with apart():
            torch.distributed.broadcast_object_list(
                found, torch.distributed.get_global_rank(self._group, 0), self._group
            )
        return found[0]

    def _is_first(self) -> bool:
        import torch

        return int(torch.distributed.get_rank(self._group)) == 0


def _is_same(state: Any, other: Any) -> bool:
    import torch

    return torch.equal(state, other) if isinstance(state, torch.Tensor) else bool(state == other)


class Split:
    """Gives each rank of a tp group its own random numbers between two split matrices.

    Between these matrices each rank has other heads or hidden units; everywhere else the ranks of a tp group draw the
    same numbers. The own numbers of a rank are seeded with the common state, so a recomputed block draws the same
    numbers again. After the second matrix the common state advances, if own numbers were drawn.
    """

    def __init__(self, rank: int, device: Any) -> None:
        """Create the separate random numbers of one rank.

        Args:
            rank: The index of the rank in its tp group.
            device: The `torch.device` of the rank.
        """
        self._rank = rank
        self._device = device
        self._common: State | None = None
        self._begun: State = {}
        self._first: set[int] = set()  # ids of the modules that are the first ones of their part

    def enter(self, module: Any, *_: Any) -> None:
        """Start this rank's own random numbers: a forward hook of matrices that are split by columns."""
        if not module.training or (self._common is not None and id(module) not in self._first):
            return
        self._first.add(id(module))
        self._common = of_torch(self._device)
        seed = mixed(self._rank, *(crc32(state.numpy().tobytes()) for state in self._common.values()))
        self._begun = of_seed(seed, self._device)
        put(self._begun, self._device)

    def leave(self, *_: Any) -> None:
        """Return to the common random numbers: a forward pre-hook of matrices that are split by rows."""
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
