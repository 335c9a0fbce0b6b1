"""When are gradients those of the whole batch? At the end of each backward pass, as their mean over the ranks.

In buckets, sent while the pass goes on. DDP does the same, but ends a program some of whose weights get no gradient
in a step, and exchanges nothing in the second of two passes after one forward; here every pass of every model is
exchanged, and a weight without a gradient stays without. A gradient from earlier passes is the same on all ranks, so
that its mean is itself.

Which weights get a gradient may differ between ranks (experts that no row of a part is sent to, blocks dropped by
chance). So what is sent, and in which order, follows from the models that the pass goes through, which are the same on
all ranks, and a bucket says which of its weights had a gradient: one that had it anywhere has it everywhere.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.inprocess import hooks
from paceline.inprocess.identity import IdentityMap
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread, check_hooks
from paceline.train.unmodified.weights import shards

_BUCKET_BYTES = 25 << 20
_FIRST_PASSES = 8
_CHECKED_EVERY = 64  # passes on a GPU, where reading the account waits for the device
_buckets: list[Any] = []
_watched: IdentityMap[weakref.ref[_Group]] = IdentityMap()  # who is in a group keeps it


def patch(spread: Spread, exchange: Exchange) -> None:
    """Act at the end of each backward pass."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    torch = spread.torch
    buckets = _Buckets(spread, exchange)
    _buckets.append(buckets)
    exchange.begun = buckets.begin
    original = torch.autograd._engine_run_backward

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if spread.on_trial:
            return original(*args, **kwargs)
        _check_split(spread, args)
        exchange.account.note_losses(args[0] if args else ())
        spread.backward += 1
        try:
            result = original(*args, **kwargs)
        except BaseException:
            buckets.forget()
            raise
        finally:
            spread.backward -= 1
        if not spread.backward and not spread.off:
            try:
                buckets.finish()
            except BaseException:
                buckets.forget()
                raise
            shards.drop_unused(exchange)
            return _of_inputs(spread, exchange, args, kwargs, result)
        return result

    hooks.install(torch.autograd, "_engine_run_backward", run)
    register_optimizer_step_pre_hook(lambda *given: _check_over(spread))


def _check_split(spread: Spread, args: Any) -> None:
    """Refuse gradients that FSDP2 cannot compute."""
    if not shards.any_split():
        return
    if len(args) > 3 and args[3]:
        spread.refuse(
            "gradients are to be differentiated again (create_graph=True), which FSDP2 cannot do for split weights; "
            "use dp in place of shard"
        )
    if len(args) > 4 and any(hasattr(each, "full_tensor") for each in args[4]):
        spread.refuse("backward(inputs=...) is given split weights; leave inputs out, or use dp in place of shard")


def _check_over(spread: Spread) -> None:
    """Refuse a step that is taken before gradients are exchanged."""
    if spread.backward and not spread.off:
        spread.refuse(
            "the optimizer steps during the backward pass, before ranks have exchanged gradients; step after backward()"
        )


def watch(spread: Spread, module: Any) -> tuple[_Group, ...]:
    """Exchange the gradients of a model from now on, also those of weights that it has only got now.

    Returns:
        The groups in which its weights are.
    """
    if shards.is_split(module):
        shards.check_parts(spread, module)
        return ()  # FSDP2 does it
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    new = [weight for weight in trained if _watched.get(weight) is None]
    if new:
        slots = [_Slot(weight) for weight in new]
        group = _Group(slots)
        for weight, slot in zip(new, slots, strict=True):
            _watched.set(weight, weakref.ref(group))
            weight.register_post_accumulate_grad_hook(functools.partial(_buckets[0].add, group, slot))
    found = (_watched.get(weight) for weight in trained)
    groups = (reference() for reference in found if reference is not None)
    return tuple(dict.fromkeys(group for group in groups if group is not None))


def check(spread: Spread, module: Any) -> None:
    """Refuse weights whose gradients are used before they could be exchanged."""
    for weight in module.parameters():
        if weight.grad_fn is not None:
            spread.refuse(
                f"{type(module).__name__} is called with computed weights (torch.func.functional_call), whose "
                f"gradients "
                "are used before ranks have exchanged them; write the loop with paceline.train"
            )
        if weight.requires_grad:
            check_hooks(spread, weight)


def _of_inputs(spread: Spread, exchange: Exchange, args: Any, kwargs: Any, result: Any) -> Any:
    """Exchange what `torch.autograd.grad` returns for weights."""
    if kwargs.get("accumulate_grad", True) or not isinstance(result, tuple):
        return result
    inputs = args[4] if len(args) > 4 else kwargs.get("inputs", ())
    weights = spread.torch.nn.Parameter
    found = []
    for each, gradient in zip(inputs, result, strict=True):
        if gradient is not None and isinstance(each, weights) and (spread.layout.shard > 1 or gradient.requires_grad):
            spread.refuse(
                "torch.autograd.grad() gives the gradients of one rank only if weights are sharded or gradients are "
                "differentiated again; use loss.backward() with dp"
            )
        known = gradient is not None and _watched.get(each) is not None
        found.append(exchange.sum_(gradient.contiguous()) / spread.ranks if known else gradient)
    return tuple(found)


class _Slot:
    """The place of a weight in a bucket. It does not keep the weight alive, and stays when the weight is gone.

    A weight may be gone on one rank and not yet on another, where it waits for the garbage collector. The bucket has
    the same length on both.
    """

    def __init__(self, weight: Any) -> None:
        from torch.utils.weak import TensorWeakRef

        self._reference = TensorWeakRef(weight)
        self.length = weight.numel()
        self.kind = (weight.dtype, weight.device)
        self.bytes = self.length * weight.element_size()
        self.is_ready = False  # it has a gradient from this pass
        self.bucket: _Bucket | None = None

    def note_ready(self) -> None:
        """Take note of a gradient."""
        if not self.is_ready and self.bucket is not None:
            self.is_ready = True
            self.bucket.ready += 1

    @property
    def weight(self) -> Any | None:
        """The weight; None if it is gone."""
        return self._reference()

    def flat(self, torch: Any) -> Any:
        """Return the gradient in one dimension; zeros where there is none."""
        weight = self.weight
        if weight is None:
            return torch.zeros(self.length, dtype=self.kind[0], device=self.kind[1])
        self.length, self.kind = weight.numel(), (weight.dtype, weight.device)
        return (torch.zeros_like(weight) if weight.grad is None else weight.grad).reshape(-1)

    def take(self, piece: Any, *, of_any: bool) -> None:
        """Give the weight the gradient of all ranks, if a rank has one."""
        weight = self.weight
        if weight is not None and weight.grad is not None:
            weight.grad.copy_(piece.view_as(weight.grad))
        elif weight is not None and of_any:
            weight.grad = piece.view_as(weight).clone()


class _Bucket:
    """Weights whose gradients are sent at once, and which of them have one from this pass."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self.slots = slots
        self.ready = 0
        for slot in slots:
            slot.bucket = self
            self.ready += slot.is_ready

    @property
    def is_full(self) -> bool:
        return self.ready == len(self.slots)

    def reset(self) -> None:
        """Begin another pass."""
        self.ready = 0
        for slot in self.slots:
            slot.is_ready = False

    def flat(self, torch: Any) -> Any:
        """Return all gradients, and behind them for each weight whether it has one from this pass."""
        pieces = [slot.flat(torch) for slot in self.slots]
        having = pieces[0].new_tensor([float(slot.is_ready) for slot in self.slots])
        return torch.cat([*pieces, having])


class _Group:
    """Weights that a model has brought, in buckets that are the same on all ranks. Its weights keep it."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self.is_known = False  # which of the weights are used
        self.buckets: list[_Bucket] = []
        self._cut(slots[::-1])

    def put_last(self, unused: set[_Slot]) -> None:
        """Let weights that got no gradient keep none waiting that get one."""
        slots = [slot for bucket in self.buckets for slot in bucket.slots]
        self.buckets, self.is_known = [], True
        self._cut([slot for slot in slots if slot not in unused])
        self._cut([slot for slot in slots if slot in unused])

    def _cut(self, slots: Iterable[_Slot]) -> None:
        """Put weights into buckets, each of one format on one device."""
        begun: list[_Slot] = []
        full = 0
        for slot in slots:
            if begun and (begun[0].kind != slot.kind or full >= _BUCKET_BYTES):
                self.buckets.append(_Bucket(begun))
                begun, full = [], 0
            begun.append(slot)
            full += slot.bytes
        if begun:
            self.buckets.append(_Bucket(begun))


class _Buckets:
    """Gradients on their way."""

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._active: dict[_Group, None] = {}  # that this pass goes through, in the order in which it comes to them
        self._strays: dict[_Group, None] = {}  # weights that are used outside of calls in parts
        self._waiting: list[_Bucket] = []
        self._sent: list[tuple[_Bucket, Any, Any]] = []
        self._passes = 0

    def begin(self, groups: Iterable[_Group]) -> None:
        """Take note that the pass has come to a call of a model; it does on all ranks in the same order."""
        for group in groups:
            if group not in self._active:
                self._active[group] = None
                self._waiting += group.buckets

    def add(self, group: _Group, slot: _Slot, weight: Any) -> None:
        """Take a gradient that has just been computed."""
        if self._spread.off or self._spread.on_trial:
            return
        if weight.grad.layout is not self._torch.strided:
            self._spread.refuse("a gradient is sparse (Embedding(sparse=True)); leave sparse=True out")
        check_hooks(self._spread, weight)
        slot.note_ready()
        if group not in self._active:
            self._strays[group] = None
        if self._spread.backward == 1:  # else more may be added to it
            while len(self._waiting) > 1 and self._waiting[0].is_full:  # the last one takes the account with it
                self._send(self._waiting.pop(0))

    def finish(self) -> None:
        """Send the rest, and wait for all."""
        self._spread.calls += bool(self._active)
        self.begin(self._strays)
        while self._waiting:
            self._send(self._waiting.pop(0), with_account=not self._waiting)
        unused: set[_Slot] = set()
        with self._torch.no_grad():
            for place, (bucket, flat, work) in enumerate(self._sent):
                work.wait()
                if place == len(self._sent) - 1:
                    flat = self._without_account(flat)
                unused |= self._take(bucket, flat.div_(self._spread.ranks))
        for group in self._active:
            if not group.is_known:
                group.put_last(unused)
        self._end()

    def _take(self, bucket: _Bucket, flat: Any) -> set[_Slot]:
        """Give weights their gradients; returns those that no rank has one for, where a rank must know."""
        *pieces, having = flat.split([*(slot.length for slot in bucket.slots), len(bucket.slots)])
        had = having.tolist() if not bucket.is_full or not self._all_known() else [1.0] * len(pieces)
        for slot, piece, of_any in zip(bucket.slots, pieces, had, strict=True):
            slot.take(piece, of_any=bool(of_any))
        return {slot for slot, of_any in zip(bucket.slots, had, strict=True) if not of_any}

    def _all_known(self) -> bool:
        return all(group.is_known for group in self._active)

    def forget(self) -> None:
        """Drop what a pass that failed has left."""
        self._end()

    def _end(self) -> None:
        for bucket in (bucket for group in (*self._active, *self._strays) for bucket in group.buckets):
            bucket.reset()
        for kept in (self._active, self._strays, self._waiting, self._sent):
            kept.clear()

    def _without_account(self, flat: Any) -> Any:
        """Compare what the ranks have done, which is behind the gradients of the last bucket."""
        self._passes += 1
        account, ranks = self._exchange.account, self._spread.ranks
        every = flat[-ranks * account.length :]
        if flat.device.type == "cpu" or self._passes <= _FIRST_PASSES or self._passes % _CHECKED_EVERY == 0:
            account.check_all(every.view(ranks, -1).tolist())
        return flat[: -ranks * account.length]

    def _send(self, bucket: _Bucket, *, with_account: bool = False) -> None:
        with self._torch.no_grad():
            flat = bucket.flat(self._torch)
            if with_account:
                account = flat.new_zeros(self._spread.ranks, self._exchange.account.length)
                account[self._spread.rank] = flat.new_tensor(self._exchange.account.numbers())
                flat = self._torch.cat([flat, account.flatten()])
        self._sent.append((bucket, flat, self._exchange.add_up_later(flat)))
