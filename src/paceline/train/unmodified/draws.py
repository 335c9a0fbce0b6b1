"""Random streams of a rank: one that all ranks share for the program, and a separate one for the rank's own rows.

While a rank reads its samples or runs a model on its rows, it draws from its own stream. Afterwards the program's
stream continues as if nothing had been drawn. So numbers that the program draws itself, such as the order of samples,
stay the same on all ranks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.train.unmodified.state import Spread

State = tuple[Any, ...]


class Streams:
    """A random stream that only this rank draws from."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._own: State | None = None

    @contextmanager
    def own(self, wanted: bool = True, *, of_torch: bool = False) -> Iterator[None]:
        """Return a context in which random numbers come from this rank's stream.

        Args:
            wanted: False leaves the program's stream in use.
            of_torch: Only torch draws from this rank's stream; NumPy and Python draw from the program's stream.
        """
        if not wanted:
            yield
            return
        torch = self._spread.torch
        before = state(torch)
        if self._own is None:
            self._seed()
        else:
            set_state(torch, self._own)
        if of_torch:
            set_state(torch, (*state(torch)[:2], *before[2:]))
        try:
            yield
        finally:
            self._own = after = state(torch)
            set_state(torch, (*before[:2], *after[2:]) if of_torch else before)

    def _seed(self) -> None:
        """Seed all generators from a number of the program's stream and the rank."""
        seed = int(self._spread.torch.randint(2**31, ()).item()) * self._spread.ranks + self._spread.rank
        self._spread.torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)


def state(torch: Any) -> State:
    """Return the states of torch's CPU generator, its GPU generators, Python's `random`, and NumPy's global generator.

    The entries of CUDA and NumPy are None if the program has not initialized or imported them.
    """
    numpy = sys.modules.get("numpy")
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), on_gpu, random.getstate(), numpy.random.get_state() if numpy is not None else None


def set_state(torch: Any, given: State) -> None:
    """Restore the generators to states returned by `state`."""
    on_cpu, on_gpu, of_python, of_numpy = given
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state_all(on_gpu)
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)


def noticed(spread: Spread, action: Callable[[], Any]) -> tuple[Any, bool]:
    """Run an action, restore the random states, and return the action's result and whether it drew random numbers."""
    torch = spread.torch
    before = state(torch)
    result = action()
    after = state(torch)
    set_state(torch, before)
    return result, not _same(torch, before, after)


def _same(torch: Any, one: State, other: State) -> bool:
    on_gpu = one[1] is None or all(map(torch.equal, one[1], other[1]))
    of_numpy = one[3] is None or (one[3][2] == other[3][2] and bool((one[3][1] == other[3][1]).all()))
    return bool(torch.equal(one[0], other[0])) and on_gpu and one[2] == other[2] and of_numpy
