"""Check that all ranks still train the same model, after each optimizer's first two steps and then every 64 steps.

Each rank sends digests of its weights, of the settings of its optimizers and of the samples that were read. The digest
of a tensor is the sum of its bits, read as integers, so equal tensors have equal digests. Digests are sent in the
background, and are compared when the next ones are sent, or at the end of the program.

With `shard`, each rank alone holds its shard of a weight, so other ranks cannot verify it. Two other checks replace the
comparison. First, the digests of each shard and of its optimizer state are taken after an optimizer step and again
before the next step; between the two, only operators of the program are allowed to change them. Second, after the first
steps and every 64 steps, the weights that FSDP2 has gathered for a forward pass are compared with the shards: the
digests of all shards of a weight add up to the digest of the whole weight.
"""

from __future__ import annotations

import functools
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from paceline.train.unmodified.account import KINDS
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread, memory_of

_EVERY = 64  # steps
_FIRST = 2  # steps of each optimizer
_MOST_NEW = 64  # optimizers whose first steps are compared
_MOST_GONE = 16  # deleted optimizers whose digests are kept
_OPERANDS = "a number or a tensor that the program computes with split weights"
_WAIT_AT_END = timedelta(seconds=10)


_FIRST_OF_PIECES = 8  # steps of each optimizer
_MOST_SHARE = 0.0005  # of the training time, for the check of shards between steps
_BITS = {8: "int64", 4: "int32", 2: "int16", 1: "int8"}


@dataclass
class _Sent:
    """Digests that are being sent.

    Attributes:
        step: The number of optimizer steps when the digests were taken.
        names: Returns the name of each digest for messages.
        pieces: The number of digests of shards, which come last. They are equal only on ranks with the same shard.
        every: The tensor that receives the digests of all ranks.
        work: torch's work handle of the exchange.
    """

    step: int
    names: Callable[[], Sequence[str]]
    pieces: int
    every: Any
    work: Any


class Drift:
    """Compares weights, optimizer settings and samples over the ranks, at some steps and at the end.

    Args:
        spread: The state of this rank.
        exchange: The exchanges with the other ranks.
    """

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._steps = self._made = 0
        self._of_each: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._samples = 0
        self._sent: _Sent | None = None
        self._last: weakref.ref[Any] | None = None
        self._gone: dict[int, tuple[int, int]] = {}  # deleted optimizer -> changes, digest of weights
        self._groups: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def patch(self) -> None:
        """Call `step` after each step of an optimizer."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda optimizer, *given: self.step(optimizer))

    def note_samples(self, number: int) -> None:
        """Add the samples of a batch to the digest of samples.

        Args:
            number: A CRC32 of the indices.
        """
        self._samples = zlib.crc32(number.to_bytes(4, "little"), self._samples)

    def step(self, optimizer: Any) -> None:
        """Count an optimizer step, and send or compare digests if a comparison is due."""
        if self._spread.off or not self._spread.calls:
            return
        self._exchange.account.note_step(optimizer)
        self._steps += 1
        own = self._of_each[optimizer] = self._of_each.get(optimizer, 0) + 1
        self._last = weakref.ref(optimizer)
        self._keep(optimizer)
        is_new = own <= _FIRST and self._made <= _MOST_NEW
        if is_new or self._steps % _EVERY == 0:
            self.finish()
            self._send(optimizer)
            if is_new:
                self.finish()

    def end(self) -> bool:
        """Compare once more at the end of the program, if the other ranks reach their end soon.

        Returns:
            Whether optimizers were compared, so that all ranks have reached their end.
        """
        optimizer = self._last() if self._last is not None else None
        try:
            self.finish(_WAIT_AT_END)
            if optimizer is not None:
                self._send(optimizer)
                self.finish(_WAIT_AT_END)
            if self._of_each or self._gone:
                self._compare_gone()
                return True
        except RuntimeError:  # other ranks have ended, or do not answer in time
            return False
        return False

    def _keep(self, optimizer: Any) -> None:
        """Arrange that the digest of an optimizer's weights is taken when the optimizer is deleted."""
        cell = self._groups.get(optimizer)
        if cell is None:
            cell = self._groups[optimizer] = []
            ordinal = self._made = self._made + 1
            weakref.finalize(optimizer, self._note_gone, ordinal, cell).atexit = False
        cell[:] = optimizer.param_groups

    def _note_gone(self, ordinal: int, groups: list[Any]) -> None:
        weights = [weight for group in groups for weight in group["params"]]
        whole = [weight for weight in weights if not hasattr(weight, "_local_tensor")]
        found = [int(each) for digests in _digests(self._torch, whole) for each in digests]
        changes = sum(weight._version for weight in weights)  # ranks may collect the optimizer at different times
        self._gone[ordinal] = (changes, zlib.crc32(repr(found).encode()))
        while len(self._gone) > _MOST_GONE:
            del self._gone[min(self._gone)]

    def _compare_gone(self) -> None:
        """Compare the weights of deleted optimizers, and the digests of the program's operations, over the ranks."""
        gone = [self._gone.get(self._made - place, (-1, 0)) for place in range(_MOST_GONE)]
        own = [self._made, self._steps, self._spread.operands, *self._exchange.account.digests()]
        own += [number for pair in gone for number in pair]
        work, every = self._exchange.gather_later(self._torch.tensor(own, dtype=self._torch.int64))
        work.wait(_WAIT_AT_END)
        names = ["the number of optimizers", "the number of optimizer steps", _OPERANDS, *KINDS]
        first, *others = every.view(self._spread.ranks, -1).tolist()
        for rank, row in enumerate(others, 1):
            what = next((name for name, one, two in zip(names, row, first, strict=False) if one != two), "")
            for place in range(len(names), len(row), 2):
                if row[place] == first[place] and row[place + 1] != first[place + 1]:
                    what = what or "a weight of an optimizer"
            if what:
                self._refuse(what, rank, 0)

    def finish(self, *wait: timedelta) -> None:
        """Wait for the digests that were sent last, and end the program if they differ between ranks.

        Args:
            wait: The longest wait; without it, there is no limit.
        """
        sent, self._sent = self._sent, None
        if sent is None:
            return
        sent.work.wait(*wait)
        every, ranks = sent.every.view(self._spread.ranks, -1), self._torch.arange(self._spread.ranks)
        expected = every[self._torch.zeros_like(ranks)]
        if sent.pieces:
            expected[:, -sent.pieces :] = every[ranks % self._spread.layout.shard, -sent.pieces :]
        differs = every != expected
        if not bool(differs.any()):
            return
        place = int(differs.any(0).nonzero()[0])
        other = int(differs[:, place].nonzero()[0])
        first = other % self._spread.layout.shard if place >= every.shape[1] - sent.pieces else 0
        self._refuse(sent.names()[place], other, first, sent.step)

    def _refuse(self, what: str, rank: int, other: int, step: int | None = None) -> None:
        self._spread.operands = 0
        self._spread.refuse(
            f"after {self._steps if step is None else step} optimizer steps, {what} is not the same on rank {rank} as "
            f"on rank {other}; the program uses something that differs between processes, such as unseeded random "
            "numbers, the time, the order of objects in a set, or settings of another program; make it the same on all "
            "ranks"
        )

    def _send(self, optimizer: Any) -> None:
        torch, numbers = self._torch, [self._samples, self._spread.operands]
        numbers += [_of_settings(group) for group in optimizer.param_groups]
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        whole = [weight for weight in weights if not hasattr(weight, "_local_tensor")]
        split = [weight for weight in weights if hasattr(weight, "_local_tensor")] if self._spread.layout.dp > 1 else []
        own = torch.tensor(numbers, dtype=torch.int64)
        own = torch.cat([own, *_digests(torch, whole), *_digests(torch, [weight._local_tensor for weight in split])])
        work, every = self._exchange.gather_later(own)
        self._sent = _Sent(self._steps, lambda: _names(optimizer, [*whole, *split]), len(split), every, work)


def check_weights(spread: Spread, exchange: Exchange, module: Any) -> None:
    """End the program if a weight of a model that is not sharded differs between ranks."""
    named = [(name, weight) for name, weight in module.named_parameters() if not hasattr(weight, "_local_tensor")]
    if not named:
        return
    own = [int(_digests(spread.torch, [weight])[0]) for _, weight in named]
    every = exchange.objects(own)
    other = next((place for place, value in enumerate(own) if any(each[place] != value for each in every)), None)
    if other is not None:
        spread.refuse(
            f"the weight {named[other][0]} of {type(module).__name__} is not the same on all ranks, because the "
            "program uses something that differs between processes, such as unseeded random numbers; set a fixed seed"
        )


def _digests(torch: Any, weights: Sequence[Any]) -> list[Any]:
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
    found: dict[Any, list[Any]] = {}
    for weight in weights:
        bits = weight.detach().view(kinds[weight.element_size()]) if weight.element_size() in kinds else weight.detach()
        found.setdefault(weight.device, []).append(bits.sum(dtype=torch.int64))
    return [torch.stack(sums).cpu() for sums in found.values()]


def _of_settings(group: Any) -> int:
    """Return a CRC32 of the settings of an optimizer's parameter group, such as the learning rate."""
    settings = sorted((key, value) for key, value in group.items() if key != "params")
    plain = [(key, float(value) if hasattr(value, "item") else value) for key, value in settings]
    return zlib.crc32(repr(plain).encode())


def _names(optimizer: Any, weights: Sequence[Any]) -> list[str]:
    """Return the name of each digest for messages, in the order in which `Drift` sends them."""
    kind = type(optimizer).__name__
    groups = [f"group {place} of {kind} ({_said(group)})" for place, group in enumerate(optimizer.param_groups)]
    by_device: dict[Any, list[str]] = {}
    for place, weight in enumerate(weights):
        shape = "x".join(map(str, weight.shape)) or "a number"
        by_device.setdefault(weight.device, []).append(f"weight {place} of {kind} ({shape})")
    return ["the samples that were read", _OPERANDS, *groups, *(name for names in by_device.values() for name in names)]


def _said(group: Any) -> str:
    rate = group.get("lr")
    return "its settings" if rate is None else f"learning rate {float(rate):g} on this rank"


@dataclass(frozen=True)
class _ShardDigests:
    """Digests of shards after an optimizer step.

    Attributes:
        writes: The number of writes of the program to shards up to that step.
        places: For each sharded tensor a weak reference, its name, and the memory address of its shard.
        digests: A tensor with one digest for each entry of `places`.
    """

    writes: int
    places: list[tuple[Any, str, int]]
    digests: Any


class Pieces:
    """Checks the shards of this rank for changes that the program has not made.

    Args:
        spread: The state of this rank.
        exchange: The exchanges with the other ranks.
    """

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._kept: weakref.WeakKeyDictionary[Any, _ShardDigests] = weakref.WeakKeyDictionary()
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._gathered: dict[int, tuple[Any, Any]] = {}  # weight -> digests of shard and whole
        self._begun_s, self._spent_s = time.perf_counter(), 0.0
        self._all_steps = 0

    def patch(self) -> None:
        """Call `before` and `after` around each step of an optimizer, if weights are sharded."""
        if self._spread.layout.shard == 1:
            return
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        register_optimizer_step_pre_hook(lambda optimizer, *given: self.before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *given: self.after(optimizer))

    def after(self, optimizer: Any) -> None:
        """Take digests of all shards of an optimizer, unless the check has already cost too much time."""
        if self._spread.off:
            return
        self._all_steps += 1
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self._kept.pop(optimizer, None)
        begun_s = time.perf_counter()
        if steps > _FIRST_OF_PIECES and not self._is_cheap(begun_s, steps):
            return
        named = [(name, value) for name, value in _split(optimizer) if value._local_tensor.numel()]
        if named:
            places = [(weakref.ref(value), name, memory_of(value)) for name, value in named]
            digests = self._torch.stack([self._digest(value) for _, value in named])
            self._kept[optimizer] = _ShardDigests(self._spread.writes, places, digests)
        self._spent_s += time.perf_counter() - begun_s

    def before(self, optimizer: Any) -> None:
        """End the program if a shard has changed since the last step, or a gathered weight differs from its shards."""
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
        """Patch one of FSDP2's parameter groups to take digests of the weights that it gathers, at some steps.

        Args:
            group: FSDP2's parameter group.
            first: The number of its first weight.
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
            return steps % _EVERY == 0  # reading digests synchronizes with the GPU
        return self._spent_s < _MOST_SHARE * (now_s - self._begun_s)

    def _digest(self, value: Any) -> Any:
        return self._sum(value._local_tensor.detach())

    def _sum(self, value: Any) -> Any:
        kind = _BITS.get(value.element_size())
        bits = value.contiguous().view(getattr(self._torch, kind)) if kind and not value.is_complex() else value
        return bits.sum(dtype=self._torch.int64)


def _split(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and tensor of each sharded weight of an optimizer, and of its sharded state."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight in weights:
        if hasattr(weight, "_local_tensor"):
            yield "a weight", weight
            for name, value in optimizer.state.get(weight, {}).items():
                if hasattr(value, "_local_tensor"):
                    yield f"{name} of a weight", value
