"""When are gradients those of the whole batch? At the end of each backward pass, as their mean over the ranks.

In buckets, sent while the pass goes on. DDP does the same, but ends a program some of whose weights get no gradient
in a step, and exchanges nothing in the second of two passes after one forward; here every pass of every model is
exchanged, and a weight without a gradient stays without. A gradient from earlier passes is the same on all ranks, so
that its mean is itself.
"""

from __future__ import annotations

import functools
from typing import Any

from paceline.observe.probe.identity import IdentityMap
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.state import Spread

_BUCKET_BYTES = 25 << 20
_buckets: list[Any] = []
_watched: IdentityMap[bool] = IdentityMap()


def patch(spread: Spread, exchange: Exchange) -> None:
    """Act at the end of each backward pass."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    torch = spread.torch
    buckets = _Buckets(spread, exchange)
    _buckets.append(buckets)
    original = torch.autograd._engine_run_backward

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        spread.backward += 1
        try:
            result = original(*args, **kwargs)
        except BaseException:
            buckets.forget()
            raise
        finally:
            spread.backward -= 1
        if not spread.backward and not spread.off:
            buckets.finish()
            return _of_inputs(spread, exchange, args, kwargs, result)
        return result

    torch.autograd._engine_run_backward = run
    register_optimizer_step_pre_hook(lambda *given: _check_over(spread))


def _check_over(spread: Spread) -> None:
    """Refuse a step that is taken before gradients are exchanged."""
    if spread.backward and not spread.off:
        spread.refuse(
            "the optimizer takes its step within backward, before ranks have exchanged gradients; step after it"
        )


def watch(spread: Spread, module: Any) -> None:
    """Exchange the gradients of a model from now on."""
    if spread.layout.shard > 1:
        return  # FSDP2 does it
    for weight in module.parameters():
        if _watched.get(weight) is None and weight.requires_grad:
            _watched.set(weight, True)
            weight.register_post_accumulate_grad_hook(_buckets[0].add)


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
                "torch.autograd.grad() for weights gives one rank's gradients where they are split, or where they "
                "are to be "
                "differentiated again; use loss.backward(), with dp"
            )
        known = gradient is not None and _watched.get(each) is not None
        found.append(exchange.sum_(gradient.contiguous()) / spread.ranks if known else gradient)
    return tuple(found)


class _Buckets:
    """Gradients on their way."""

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._waiting: list[Any] = []
        self._bytes = 0
        self._sent: list[tuple[Any, list[Any], Any]] = []

    def add(self, weight: Any) -> None:
        """Take a gradient that has just been computed."""
        if self._spread.off:
            return
        if weight.grad.layout is not self._torch.strided:
            self._spread.refuse("a gradient is sparse (Embedding(sparse=True)); leave sparse=True out")
        if self._waiting and self._waiting[0].grad.dtype != weight.grad.dtype:
            self._send()
        self._waiting.append(weight)
        self._bytes += weight.grad.numel() * weight.grad.element_size()
        if self._bytes >= _BUCKET_BYTES:
            self._send()

    def finish(self) -> None:
        """Send the rest, and wait for all."""
        self._send()
        with self._torch.no_grad():
            for flat, weights, work in self._sent:
                work.wait()
                flat.div_(self._spread.ranks)
                pieces = flat.split([weight.grad.numel() for weight in weights])
                for weight, piece in zip(weights, pieces, strict=True):
                    weight.grad.copy_(piece.view_as(weight.grad))
        self._sent.clear()

    def forget(self) -> None:
        """Drop what a pass that failed has left."""
        self._waiting.clear()
        self._sent.clear()
        self._bytes = 0

    def _send(self) -> None:
        if not self._waiting:
            return
        with self._torch.no_grad():
            flat = self._torch.cat([weight.grad.reshape(-1) for weight in self._waiting])
        self._sent.append((flat, self._waiting, self._exchange.meet().all_reduce(flat, async_op=True)))
        self._waiting, self._bytes = [], 0
