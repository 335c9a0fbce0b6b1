"""How does a model train on parts of the rows? Each outermost call of a module that has parameters is split.

Its inputs are cut to this rank's rows, and the outputs of all ranks come back together: who calls sees what one process
would. How outputs go together is not guessed, but found out by a call with all rows beside calls with the parts
(`checked`), once for each kind of input.
"""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

from paceline.train.unmodified import checked, draws, gradients, shards
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.rows import sizes
from paceline.train.unmodified.state import Spread

_LOOKS = 8  # first calls, in which ranks see whether they were given the same; then every so many
_LOOK_EVERY = 64


def patch(spread: Spread, exchange: Exchange) -> None:
    """Split calls of models from now on."""
    torch, calls = spread.torch, _Calls(spread, exchange)
    original, compiling = torch.nn.Module.__call__, torch.compiler.is_compiling

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if spread.nested or compiling() or not spread.acts() or next(self.parameters(), None) is None:
            return original(self, *args, **kwargs)
        return calls.call(self, functools.partial(original, self), args, kwargs)

    torch.nn.Module.__call__ = __call__


class _Calls:
    """Calls of models, each in parts."""

    def __init__(self, spread: Spread, exchange: Exchange) -> None:
        self._spread, self._exchange, self._torch = spread, exchange, spread.torch
        self._streams = draws.Streams(spread)
        self._ways: WeakKeyDictionary[Any, dict[Any, checked.Way]] = WeakKeyDictionary()
        self._calls = 0

    def call(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call a model; each rank with its rows."""
        leaves, spec = self._torch.utils._pytree.tree_flatten((args, kwargs))
        rows = checked.rows_of(self._torch, leaves)
        trains = module.training and self._torch.is_grad_enabled()
        if trains:
            self._begin_training(module, rows)
        if rows is None or rows < self._spread.ranks:
            return self._whole(forward, args, kwargs)
        self._see_that_ranks_agree(leaves)
        called = checked.Call(self._spread, module, forward, leaves, spec, rows)
        ways = self._ways.setdefault(module, {})
        kind = called.kind()
        if kind not in ways or not ways[kind].settled:
            if not ways:
                self._begin_alike(module)
            ways[kind] = checked.look(called, ways.get(kind), trains=trains)
        if self._torch.is_grad_enabled():  # a model may be trained in evaluation mode too
            shards.split(self._spread, self._exchange, module, trains=trains)
            self._exchange.groups = gradients.watch(self._spread, module)
        if not ways[kind].splits or checked.weighs_nothing(called, ways[kind]):
            return self._whole(forward, args, kwargs)
        self._spread.calls += trains
        return self._in_parts(called, ways[kind], trains)

    def _begin_training(self, module: Any, rows: int | None) -> None:
        """Refuse what cannot be split at all."""
        if module in self._ways or rows is not None and rows >= self._spread.ranks:
            return
        name, refuse = type(module).__name__, self._spread.refuse
        if rows is None:
            refuse(
                f"{name} is called without a tensor, so that its rows cannot be dealt out; write the loop with "
                "paceline.train"
            )
        refuse(
            f"{name} is given a batch of {rows}, which {self._spread.ranks} ranks cannot share; take a larger "
            "batch_size"
        )

    def _begin_alike(self, module: Any) -> None:
        """Have all ranks begin with the weights of rank 0."""
        values = [*module.parameters(), *module.buffers()]
        if any(hasattr(value, "full_tensor") for value in values):
            return
        if not self._exchange.agree([checked.digest(self._torch, value) for value in values]):
            with self._torch.no_grad():
                for value in values:
                    self._exchange.meet().broadcast(value.data, 0)

    def _whole(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call a model with all rows on each rank, where there are fewer than ranks."""
        with self._spread.inside(split=False):
            return forward(*args, **kwargs)

    def _in_parts(self, called: checked.Call, way: checked.Way, trains: bool) -> Any:
        spread, exchange = self._spread, self._exchange
        parts = sizes(called.rows, spread.ranks)
        own = [self._own(called, leaf) for leaf in called.leaves]
        args, kwargs = self._torch.utils._pytree.tree_unflatten(own, called.spec)
        with spread.inside(split=True), self._streams.own(way.draws):
            result = called.forward(*args, **kwargs)
        if trains and way.buffers_to_compare:
            way.buffers_to_compare = False
            checked.compare_buffers(spread, exchange, called.module)
        return checked.together(exchange, called, way, parts, result)

    def _own(self, called: checked.Call, leaf: Any) -> Any:
        if called.is_of_rows(leaf):
            return self._exchange.own_rows(leaf, self._spread.ranks)
        return self._exchange.shared(leaf) if isinstance(leaf, self._torch.Tensor) else leaf

    def _see_that_ranks_agree(self, leaves: Any) -> None:
        self._calls += 1
        if self._calls > _LOOKS and self._calls % _LOOK_EVERY:
            return
        numbers = [checked.digest(self._torch, leaf) for leaf in leaves if isinstance(leaf, self._torch.Tensor)]
        if not self._exchange.agree([len(numbers), *numbers]):
            self._spread.refuse(
                "the ranks have different inputs for one call of the model: something is drawn that is not seeded, "
                "such as "
                "by the time, the process or os.urandom; seed it with a number"
            )
