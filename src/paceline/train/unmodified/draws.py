"""Which random numbers does a rank draw? What the whole program draws is the same on all; what is for a part is not.

Within a model that trains, and where samples are read, each rank has a stream of its own, and the program's goes on
afterwards as if nothing had been drawn: so the order of samples, drawn by the program, stays the same on all ranks.
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
    """A stream of random numbers of this rank's own."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._own: State | None = None

    @contextmanager
    def own(self, wanted: bool = True, *, of_torch: bool = False) -> Iterator[None]:
        """Draw from the own stream.

        Args:
            wanted: False: draw from the program's stream.
            of_torch: Draw only torch's numbers from the own stream; those of numpy and Python are for all rows.
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
        """Begin a stream that depends on the program's seed and on the rank."""
        seed = int(self._spread.torch.randint(2**31, ()).item()) * self._spread.ranks + self._spread.rank
        self._spread.torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)


def state(torch: Any) -> State:
    """Return the state of the generators that the program may draw from, on every device."""
    numpy = sys.modules.get("numpy")
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), on_gpu, random.getstate(), numpy.random.get_state() if numpy is not None else None


def set_state(torch: Any, given: State) -> None:
    """Put the generators back into a state."""
    on_cpu, on_gpu, of_python, of_numpy = given
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state_all(on_gpu)
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)


def noticed(spread: Spread, action: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what an action returns, and whether it drew random numbers, which are put back."""
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
