"""Is a piece of a split weight what its rank wrote? With `shard`, a rank alone has its piece, and no other can tell.

Two checks. A digest of each piece, and of its optimizer state, is taken after a step of the optimizer and again before
the next step: only operators of the program may have changed it in between. And after the first steps and after every
64 the weights that a rank has gathered for a forward pass are compared with the pieces: a digest is the sum of a
tensor's bits as whole numbers, so that the digests of all pieces add up to the digest of the whole weight.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread, memory_of

_FIRST = 8  # steps of each optimizer
_EVERY = 64
_MOST_SHARE = 0.005  # of the time of training, for the first check
_KINDS = {8: "int64", 4: "int32", 2: "int16", 1: "int8"}


@dataclass(frozen=True)
class _Kept:
    """Digests after a step.

    Attributes:
        writes: How often the program had written to pieces.
        places: Each split tensor, its name, and its memory.
        digests: One for each.
    """

    writes: int
    places: list[tuple[Any, str, int]]
    digests: Any


class Pieces:
    """Looks after the pieces of this rank.

    Args:
        spread: This rank.
        exchange: The other ranks.
    """

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._gathered: dict[int, tuple[Any, Any]] = {}  # place of a weight -> digests of its piece, and of the whole
        self._begun_s, self._spent_s = time.perf_counter(), 0.0
        self._all_steps = 0

    def patch(self) -> None:
        """Act before and after each step of an optimizer."""
        if self._spread.layout.shard == 1:
            return
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda optimizer, *given: self.before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *given: self.after(optimizer))

    def after(self, optimizer: Any) -> None:
        """Take digests of all pieces, if this costs little."""
        if self._spread.off:
            return
        self._all_steps += 1
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self._kept.pop(optimizer, None)
        begun_s = time.perf_counter()
        if steps > _FIRST and not self._is_cheap(begun_s, steps):
            return
        named = [(name, value) for name, value in _split(optimizer) if value._local_tensor.numel()]
        if named:
            places = [(weakref.ref(value), name, memory_of(value)) for name, value in named]
            digests = self._torch.stack([self._digest(value) for _, value in named])
            self._kept[optimizer] = _Kept(self._spread.writes, places, digests)
        self._spent_s += time.perf_counter() - begun_s

    def before(self, optimizer: Any) -> None:
        """Compare pieces with what they were after the last step, and gathered weights with the pieces."""
        if self._spread.off:
            return
        self._compare_gathered()
        kept = self._kept.pop(optimizer, None)
        if kept is None:
            return
        begun_s = time.perf_counter()
        for (reference, name, memory), digest in zip(kept.places, kept.digests.tolist(), strict=True):
            value = reference()
            if value is None or memory_of(value) != memory or self._spread.written.get(memory, 0) > kept.writes:
                continue
            if int(self._digest(value)) != digest:
                self._spread.refuse(
                    f"{name} {tuple(value.shape)} has changed on rank {self._spread.rank} between two optimizer steps, "
                    "though the program has not changed it, such as by a fault of memory or of the device; start again "
                    "from a checkpoint",
                    alone=True,
                )
        self._spent_s += time.perf_counter() - begun_s

    def watch(self, group: Any, first: int) -> None:
        """Take digests of weights that one of FSDP2's groups gathers, where that is due.

        Args:
            group: The group.
            first: Place of its first weight.
        """
        original = group.wait_for_unshard

        @functools.wraps(original)
        def wait_for_unshard(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            for place, weight in enumerate(group.fsdp_params, first):
                if self._is_due() and place not in self._gathered and hasattr(weight, "_unsharded_param"):
                    whole = self._sum(weight._unsharded_param.detach())
                    self._gathered[place] = (self._digest(weight.sharded_param), whole)
            return found

        group.wait_for_unshard = wait_for_unshard

    def _compare_gathered(self) -> None:
        found, self._gathered = self._gathered, {}
        if not self._is_due() or not found:
            return
        places = sorted(found)
        own = [places, *([int(found[place][which]) for place in places] for which in (0, 1))]
        every = self._exchange.objects(own)
        size = self._spread.layout.shard
        for rank, (known, _, wholes) in enumerate(every):
            first = rank // size * size
            group = every[first : first + size]
            sums = [sum(pieces) for pieces in zip(*(each[1] for each in group), strict=True)]
            wrong = known == places and any((a - b) % (1 << 64) for a, b in zip(wholes, sums, strict=True))
            if wrong:
                self._spread.refuse(
                    f"a weight that rank {rank} has gathered is not made of the pieces of all ranks, such as by a "
                    "fault of memory or of a link between devices; start again from a checkpoint"
                )

    def _is_due(self) -> bool:
        return self._all_steps <= 2 or self._all_steps % _EVERY == 0

    def _is_cheap(self, now_s: float, steps: int) -> bool:
        if self._torch.cuda.is_initialized():
            return steps % _EVERY == 0  # reading digests waits for the device
        return self._spent_s < _MOST_SHARE * (now_s - self._begun_s)

    def _digest(self, value: Any) -> Any:
        return self._sum(value._local_tensor.detach())

    def _sum(self, value: Any) -> Any:
        kind = _KINDS.get(value.element_size())
        bits = value.contiguous().view(getattr(self._torch, kind)) if kind and not value.is_complex() else value
        return bits.sum(dtype=self._torch.int64)


def _split(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield split weights of an optimizer, and its split state."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if hasattr(weight, "_local_tensor"):
                yield "a weight", weight
                for name, value in optimizer.state.get(weight, {}).items():
                    if hasattr(value, "_local_tensor"):
                        yield f"{name} of a weight", value
