"""Exchange of gradients: at the end of each backward pass every gradient is the mean over the ranks.

Gradients are sent in buckets while the backward pass runs. DDP does the same, but fails if a weight gets no gradient,
and skips the second of two backward passes after one forward pass. Here every pass of every model is exchanged, and a
weight without a gradient stays without one. A gradient from earlier passes is equal on all ranks, so its mean is the
gradient itself.

Ranks can differ in which weights get a gradient (experts that receive no row of a part, blocks dropped at random). So
the buckets and their order follow from the models that the backward pass goes through, which are the same on all ranks.
A bucket also carries a flag for each weight; a weight with a gradient on any rank gets one on every rank.
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
_CHECKED_EVERY = 64  # passes; on a GPU, as reading the digests synchronizes with it
_buckets: list[Any] = []
_watched: IdentityMap[weakref.ref[_Group]] = IdentityMap()  # weight -> its group, which its gradient hook keeps alive

_FUSED_IN_VAIN = ("SGD", "Adagrad")  # the fused kernels of Adam and AdamW have a rule for DTensors


def patch(spread: Spread, exchange: Exchange) -> None:
    """Patch torch's backward pass to exchange gradients at its end."""
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
    register_optimizer_step_pre_hook(lambda optimizer, *given: _check_step(spread, optimizer))


def _check_split(spread: Spread, args: Any) -> None:
    """End the program if a backward pass asks for gradients of sharded weights that FSDP2 cannot compute."""
    if not shards.any_split():
        return
    if len(args) > 3 and args[3]:
        spread.refuse(
            "gradients are to be differentiated again (create_graph=True), which FSDP2 cannot do for split weights; "
            "use dp in place of shard"
        )
    if len(args) > 4 and any(hasattr(each, "full_tensor") for each in args[4]):
        spread.refuse("backward(inputs=...) is given split weights; leave inputs out, or use dp in place of shard")


def _check_step(spread: Spread, optimizer: Any) -> None:
    """End the program if an optimizer steps before gradients are exchanged, or would not update sharded weights."""
    groups = optimizer.param_groups if shards.any_split() and not spread.off else ()
    fused = [group for group in groups if group.get("fused") and type(optimizer).__name__ in _FUSED_IN_VAIN]
    if any(hasattr(weight, "full_tensor") for group in fused for weight in group["params"]):
        spread.refuse(
            f"{type(optimizer).__name__} with fused=True does not update split weights; leave fused=True out, or use "
            "dp in place of shard"
        )
    if spread.backward and not spread.off:
        spread.refuse(
            "the optimizer steps during the backward pass, before ranks have exchanged gradients; step after backward()"
        )


def watch(spread: Spread, module: Any) -> tuple[_Group, ...]:
    """Exchange the gradients of a model's weights from now on; weights added since the last call form a new group.

    Returns:
        The groups that contain the model's weights; none for a sharded model, whose gradients FSDP2 exchanges.
    """
    if shards.is_split(module):
        shards.check_parts(spread, module)
        return ()  # FSDP2 exchanges them
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
    """End the program if the gradient of a weight would be used before the exchange (computed weights, hooks)."""
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
    """Return the result of `torch.autograd.grad`, with the gradients of weights averaged over the ranks."""
    if kwargs.get("accumulate_grad", True) or not isinstance(result, tuple):
        return result
    inputs = args[4] if len(args) > 4 else kwargs.get("inputs", ())
    found = []
    for each, gradient in zip(inputs, result, strict=True):
        known = gradient is not None and (_watched.get(each) is not None or hasattr(each, "full_tensor"))
        if known and (spread.layout.shard > 1 or gradient.requires_grad):
            spread.refuse(
                "torch.autograd.grad() with respect to weights is not averaged over the ranks if weights are sharded, "
                "or if the gradient is differentiated again (create_graph=True); write the loop with paceline.train"
            )
        found.append(exchange.sum_(gradient.contiguous()) / spread.ranks if known else gradient)
    return tuple(found)


class _Slot:
    """The place of a weight in a bucket, with a weak reference to the weight.

    The slot stays when its weight is deleted, because ranks collect garbage at different times and their buckets must
    have the same length.
    """

    def __init__(self, weight: Any) -> None:
        from torch.utils.weak import TensorWeakRef

        self._reference = TensorWeakRef(weight)
        self.length = weight.numel()
        self.kind = (weight.dtype, weight.device)
        self.bytes = self.length * weight.element_size()
        self.is_ready = False  # whether it has a gradient from this pass
        self.bucket: _Bucket | None = None

    def note_ready(self) -> None:
        """Note that the weight has its gradient of this pass."""
        if not self.is_ready and self.bucket is not None:
            self.is_ready = True
            self.bucket.ready += 1

    @property
    def weight(self) -> Any | None:
        """The weight, or None if it was deleted."""
        return self._reference()

    def flat(self, torch: Any) -> Any:
        """Return the gradient as a 1-D tensor, or zeros if there is none."""
        weight = self.weight
        if weight is None:
            return torch.zeros(self.length, dtype=self.kind[0], device=self.kind[1])
        self.length, self.kind = weight.numel(), (weight.dtype, weight.device)
        return (torch.zeros_like(weight) if weight.grad is None else weight.grad).reshape(-1)

    def take(self, piece: Any, *, of_any: bool) -> None:
        """Set the gradient of the weight to the mean over the ranks.

        Args:
            piece: The mean gradient, in one dimension.
            of_any: Whether any rank has a gradient; otherwise a weight without a gradient stays without one.
        """
        weight = self.weight
        if weight is not None and weight.grad is not None:
            weight.grad.copy_(piece.view_as(weight.grad))
        elif weight is not None and of_any:
            weight.grad = piece.view_as(weight).clone()


class _Bucket:
    """Weights whose gradients are sent together, and which of them have a gradient from this pass."""

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
        """Clear the flags for the next backward pass."""
        self.ready = 0
        for slot in self.slots:
            slot.is_ready = False

    def flat(self, torch: Any) -> Any:
        """Return all gradients as one 1-D tensor, then a flag for each weight: 1 if it has a gradient, else 0."""
        pieces = [slot.flat(torch) for slot in self.slots]
        having = pieces[0].new_tensor([float(slot.is_ready) for slot in self.slots])
        return torch.cat([*pieces, having])


class _Group:
    """Weights of one model that the same call of `watch` added, in buckets that are the same on all ranks."""

    def __init__(self, slots: Sequence[_Slot]) -> None:
        self.is_known = False  # whether `put_last` has run
        self.buckets: list[_Bucket] = []
        self._cut(slots[::-1])

    def put_last(self, unused: set[_Slot]) -> None:
        """Move weights without a gradient to the last buckets, so that they do not delay other weights."""
        slots = [slot for bucket in self.buckets for slot in bucket.slots]
        self.buckets, self.is_known = [], True
        self._cut([slot for slot in slots if slot not in unused])
        self._cut([slot for slot in slots if slot in unused])

    def _cut(self, slots: Iterable[_Slot]) -> None:
        """Add buckets of about `_BUCKET_BYTES`, each with weights of one dtype on one device."""
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
    """The buckets of the current backward pass: waiting, sent and received."""

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._active: dict[_Group, None] = {}  # reached by this pass, in order
        self._strays: dict[_Group, None] = {}  # weights that were used outside of split calls
        self._waiting: list[_Bucket] = []
        self._sent: list[tuple[_Bucket, Any, Any]] = []
        self._passes = 0

    def begin(self, groups: Iterable[_Group]) -> None:
        """Queue the buckets of a model when the backward pass reaches its call; the order is the same on all ranks."""
        for group in groups:
            if group not in self._active:
                self._active[group] = None
                self._waiting += group.buckets

    def add(self, group: _Group, slot: _Slot, weight: Any) -> None:
        """Handle a gradient that has just been computed: mark its slot, and send buckets that are full."""
        if self._spread.off or self._spread.on_trial or weight.grad is None:  # None: frozen since its forward pass
            return
        if weight.grad.layout is not self._torch.strided:
            self._spread.refuse("a gradient is sparse (Embedding(sparse=True)); leave sparse=True out")
        check_hooks(self._spread, weight)
        slot.note_ready()
        if group not in self._active:
            self._strays[group] = None
        if self._spread.backward == 1:  # a nested pass may be followed by more gradients
            while len(self._waiting) > 1 and self._waiting[0].is_full:  # the last bucket also carries the digests
                self._send(self._waiting.pop(0))

    def finish(self) -> None:
        """Send the buckets that are left, wait for all exchanges, and set the gradients."""
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
        """Set the gradients of a bucket's weights, and return the slots without a gradient on any rank.

        The flags are not read if the bucket is full and the unused weights of all groups are known already.
        """
        *pieces, having = flat.split([*(slot.length for slot in bucket.slots), len(bucket.slots)])
        had = having.tolist() if not bucket.is_full or not self._all_known() else [1.0] * len(pieces)
        for slot, piece, of_any in zip(bucket.slots, pieces, had, strict=True):
            slot.take(piece, of_any=bool(of_any))
        return {slot for slot, of_any in zip(bucket.slots, had, strict=True) if not of_any}

    def _all_known(self) -> bool:
        return all(group.is_known for group in self._active)

    def forget(self) -> None:
        """Drop the buckets of a backward pass that failed."""
        self._end()

    def _end(self) -> None:
        for bucket in (bucket for group in (*self._active, *self._strays) for bucket in group.buckets):
            bucket.reset()
        for kept in (self._active, self._strays, self._waiting, self._sent):
            kept.clear()

    def _without_account(self, flat: Any) -> Any:
        """Compare the ranks' digests at the end of the last bucket, and return the bucket without them."""
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
