"""Patch of `Module.__call__`: each outermost call of a module with parameters is split over the ranks.

The inputs are cut to this rank's rows, and the outputs of all ranks are combined, so that the caller gets the result of
one process. The rule that combines each output is not guessed: for each kind of input, a trial call with all rows is
compared with trial calls with the parts (`comparison`).
"""

from __future__ import annotations

import functools
import io
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from paceline.inprocess import hooks
from paceline.train.attribute_snapshot import with_attributes
from paceline.train.unmodified import draws, gradients
from paceline.train.unmodified.call import Call, digest, rows_of, sizes
from paceline.train.unmodified.comparison import drift
from paceline.train.unmodified.comparison.ways import Ways
from paceline.train.unmodified.comparison.whole_and_parts import compare
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.joins import Way, together, weighs_nothing
from paceline.train.unmodified.later import resolved
from paceline.train.unmodified.state import Spread, is_own_file, plain_settings
from paceline.train.unmodified.weights import copies, shards

_LOOKS = 8  # first calls of each model whose inputs the ranks compare; then every `_LOOK_EVERY` calls
_LOOK_EVERY = 64


def patch(spread: Spread, exchange: Exchange) -> SplitCalls:
    """Patch `torch.nn.Module.__call__` to split calls of models, and return the object that splits them."""
    torch = spread.torch
    from torch.nn.utils.parametrize import ParametrizationList

    original, compiling, tracing = torch.nn.Module.__call__, torch.compiler.is_compiling, torch.jit.is_tracing
    calls = SplitCalls(spread, exchange, original)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if spread.nested or compiling() or tracing() or not spread.acts() or next(self.parameters(), None) is None:
            return original(self, *args, **kwargs)
        if isinstance(self, ParametrizationList):  # computes a weight from other weights, without rows
            return original(self, *args, **kwargs)
        copies.check_current(spread, self)
        return calls.call(self, args, kwargs)

    hooks.install(torch.nn.Module, "__call__", __call__)
    _count_hooks(spread)
    return calls


def _count_hooks(spread: Spread) -> None:
    """Patch `torch.Tensor.register_hook` to count the hooks that the program registers during calls of models."""
    original = spread.torch.Tensor.register_hook

    @functools.wraps(original)
    def register_hook(self: Any, hook: Any) -> Any:
        if spread.nested and not spread.on_trial and is_own_file(sys._getframe(1).f_code.co_filename):
            spread.hooks += 1
        return original(self, hook)

    hooks.install(spread.torch.Tensor, "register_hook", register_hook)


class SplitCalls:
    """Splits calls of models; keeps the results of the comparisons of each model.

    Args:
        spread: The state of this rank.
        exchange: The exchanges with the other ranks.
        original: The unpatched `Module.__call__`.
    """

    def __init__(self, spread: Spread, exchange: Exchange, original: Callable[..., Any]) -> None:
        self._spread, self._exchange, self._torch, self._original = spread, exchange, spread.torch, original
        self._streams = draws.Streams(spread)
        self._ways: WeakKeyDictionary[Any, Ways] = WeakKeyDictionary()
        self._calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def call(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Call a model with this rank's rows, and return the result for the whole batch.

        Args:
            module: The model.
            args: Positional arguments of the program.
            kwargs: Keyword arguments of the program.
        """
        forward = functools.partial(self._original, module)
        leaves, spec = self._torch.utils._pytree.tree_flatten((args, kwargs))
        leaves = [resolved(leaf) for leaf in leaves]
        rows = rows_of(self._torch, leaves)
        trains = module.training and self._torch.is_grad_enabled()
        if trains and rows is None and self._spread.layout.shard == 1 and self._are_numbers(leaves):
            return self._call_on_each_rank(module, forward, args, kwargs)
        if trains:
            self._begin_training(module, leaves, rows)
        if rows is None or rows < self._spread.ranks:
            return self._whole(forward, args, kwargs)
        self._see_that_ranks_agree(module, leaves)
        if shards.is_part(module) and not shards.is_split(module):
            return self._whole(forward, args, kwargs)  # a part of a split model that the program calls itself
        if shards.is_split(module):
            shards.check_replaced(self._spread, module)
        if _is_lazy(self._torch, module):
            self._make_weights(module, forward, args, kwargs)
        if module not in self._ways:
            shards.check_shared(self._spread, module)
            _check_iterators(self._spread, module)
            _check_max_norm(self._spread, module)
            self._begin_alike(module)
        called = Call.of(self._spread, module, forward, (leaves, spec), rows)
        if self._torch.is_grad_enabled():
            gradients.check(self._spread, module)
        ways = self._ways.setdefault(module, Ways(self._exchange.account))
        look = functools.partial(self._look, trains)
        way = ways.find(called, look)
        if self._torch.is_grad_enabled():  # a model may be trained in evaluation mode too
            shards.split(self._spread, self._exchange, module, trains=trains)
            self._exchange.groups = gradients.watch(self._spread, module)
        if not way.splits or weighs_nothing(called, way):
            return self._whole(forward, args, kwargs)
        self._exchange.account.note_state(module, draws=way.draws)
        self._spread.calls += trains
        self._exchange.account.note_call(module, called.leaves)
        result = self._in_parts(replace(called, is_cut=way.is_cut), way, ways)
        ways.compare_now(called, way, look)
        return result

    def _look(self, trains: bool, called: Call, before: Way | None) -> Way:
        if before is not None and not before.splits:
            return before
        if before is not None:
            if shards.is_split(called.module):
                shards.check_parts(self._spread, called.module)
            self._exchange.check_call(called.module, draws=before.draws)
            drift.check_weights(self._spread, self._exchange, called.module)
        found = compare(self._exchange, called, before, trains=trains)
        if before is not None and before.settled and not found.splits:
            self._spread.refuse(
                f"{called.name} was called in parts, and its rows depend on each other now; call it in evaluation with "
                "whole batches from the first call on, or write the loop with paceline.train"
            )
        return found

    def forget(self) -> None:
        """Forget all models, because the program ends; what is known about a model may refer to the model itself."""
        self._ways.clear()

    def end(self) -> None:
        """Compare the last training call of each model, because a model can begin to mix its rows at any time.

        All ranks must have reached the end of the program.
        Ranks can have different models left, as each collects its garbage at its own time. Then nothing is compared.
        """
        found = []
        for module, ways in list(self._ways.items()):
            empty = Call(self._spread, module, functools.partial(self._original, module), (), None, 0, ())
            found += [(module, *last) for last in ways.at_end(empty)]
        if not self._exchange.agree([zlib.crc32(repr([way.calls for _, _, way, *_ in found]).encode())]):
            return
        for module, called, way, modes, before in found:
            with _modes(module, modes), with_attributes(module, before), self._torch.enable_grad():
                self._look(True, called, way)

    def _begin_training(self, module: Any, leaves: Sequence[Any], rows: int | None) -> None:
        """End the program if a model is first trained without a tensor, or with fewer rows than ranks."""
        if module in self._ways or rows is not None and rows >= self._spread.ranks:
            return
        name, refuse = type(module).__name__, self._spread.refuse
        if rows is None and self._spread.layout.shard > 1 and self._are_numbers(leaves):
            refuse(f"{name} is called with numbers only, so its rows cannot be split; use dp in place of shard")
        if rows is None:
            refuse(
                f"{name} is called without a tensor that has a batch dimension, so its rows cannot be split; "
                "give it tensors, or lists or dicts of them (in other objects, such as dataclasses, tensors are not "
                "found), or write the loop with paceline.train"
            )
        refuse(
            f"the first tensor that {name} gets has {rows} row{'s' * (rows != 1)}, which {self._spread.ranks} ranks "
            "cannot share; take a larger batch_size, stack a list of samples into one tensor, or, if the call does not "
            "train, make it under torch.no_grad()"
        )

    def _are_numbers(self, leaves: Sequence[Any]) -> bool:
        """Return whether the inputs of a module are numbers only, such as the losses of several tasks."""
        kinds = (self._torch.Tensor, bool, int, float, str, type(None))
        are_plain = all(isinstance(leaf, kinds) for leaf in leaves)
        has_tensor = any(isinstance(leaf, self._torch.Tensor) for leaf in leaves)
        return are_plain and has_tensor

    def _call_on_each_rank(self, module: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call a module that gets numbers only. All ranks have the same inputs, so their gradients are equal."""
        if module not in self._calls:
            self._begin_alike(module)
        self._calls[module] = self._calls.get(module, 0) + 1
        return self._whole(forward, args, kwargs)

    def _begin_alike(self, module: Any) -> None:
        """Copy the weights and buffers of rank 0 to all ranks, if they differ."""
        values = [*module.parameters(), *module.buffers()]
        if any(hasattr(value, "full_tensor") for value in values):
            return
        if not self._exchange.agree([digest(self._torch, value) for value in values]):
            with self._torch.no_grad():
                for value in values:
                    self._exchange.meet().broadcast(value.data, 0)

    def _make_weights(self, module: Any, forward: Any, args: Any, kwargs: Any) -> None:
        """Call a model with lazy modules once with all rows to create their weights, and undo its other effects."""
        with _unchanged(self._torch, module), self._torch.no_grad(), self._spread.inside(split=False):
            forward(*args, **kwargs)

    def _whole(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """Call a model with all rows on each rank."""
        with self._spread.inside(split=False):
            return forward(*args, **kwargs)

    def _in_parts(self, called: Call, way: Way, ways: Ways) -> Any:
        own = [self._own(called, place, way) for place in range(len(called.leaves))]
        args, kwargs = called.with_leaves(own)
        with self._spread.inside(split=True), self._streams.own(way.draws_for_rows, of_torch=True):
            result = called.forward(*args, **kwargs)
        ways.note(called, own, result)
        for place in way.changes:
            self._join_input(called, place, own[place])
        return together(self._exchange, called, way, result)

    def _own(self, called: Call, place: int, way: Way) -> Any:
        leaf = called.leaves[place]
        if called.is_cut[place]:
            rows = self._exchange.own_rows(leaf, self._spread.ranks)
            return rows.clone() if place in way.changes else rows
        return self._exchange.shared(leaf) if isinstance(leaf, self._torch.Tensor) else leaf

    def _join_input(self, called: Call, place: int, own: Any) -> None:
        """Gather the rows of an input that the model changed in place on each rank."""
        if called.is_cut[place]:
            with self._torch.no_grad():
                rows = self._exchange.all_rows(own, sizes(called.rows, self._spread.ranks))
                called.leaves[place].copy_(rows)

    def _is_due(self, module: Any) -> bool:
        calls = self._calls.get(module, 0)
        return calls <= _LOOKS or not calls % _LOOK_EVERY

    def _see_that_ranks_agree(self, module: Any, leaves: Any) -> None:
        self._calls[module] = self._calls.get(module, 0) + 1
        if not self._is_due(module):
            return
        numbers = [digest(self._torch, leaf) for leaf in leaves if isinstance(leaf, self._torch.Tensor)]
        if not self._exchange.agree([len(numbers), *numbers]):
            self._spread.refuse(
                "the ranks have different inputs for one call of the model: something is drawn that is not seeded, "
                "such as by the time, the process or os.urandom; seed it with a number"
            )


def _check_iterators(spread: Spread, module: Any) -> None:
    """End the program if a model has an iterator attribute, because a comparison would advance the iterator."""
    named = [(f"{name}.{key}", value) for name, part in module.named_modules() for key, value in vars(part).items()]
    for name, value in named:
        if isinstance(value, Iterator) and not isinstance(value, io.IOBase):
            spread.refuse(
                f"{type(module).__name__} has an iterator in its attribute {name.lstrip('.')} "
                f"({type(value).__name__}), whose position Paceline cannot restore after comparing; use a number, "
                "such as self.calls += 1, or write the loop with paceline.train"
            )


def _check_max_norm(spread: Spread, module: Any) -> None:
    """End the program if an embedding changes its weights in the forward pass, for the samples of one rank only."""
    kinds = (spread.torch.nn.Embedding, spread.torch.nn.EmbeddingBag)
    embeddings = ((name, part) for name, part in module.named_modules() if isinstance(part, kinds))
    name = next((name for name, each in embeddings if each.max_norm is not None), None)
    if name is not None:
        spread.refuse(
            f"{name or type(module).__name__} has max_norm, with which the forward pass changes the weights that a "
            "rank's own samples use, so ranks would train different weights; limit the norms of all rows after "
            "optimizer.step() instead"
        )


@contextmanager
def _modes(module: Any, modes: Sequence[bool]) -> Iterator[None]:
    """Set the mode of each submodule, training or evaluation, inside the context."""
    before = [part.training for part in module.modules()]
    _set_modes(module, modes)
    try:
        yield
    finally:
        _set_modes(module, before)


def _set_modes(module: Any, modes: Sequence[bool]) -> None:
    for part, trains in zip(module.modules(), modes, strict=True):
        part.training = trains


def _is_lazy(torch: Any, module: Any) -> bool:
    kind = torch.nn.parameter.UninitializedTensorMixin
    return any(isinstance(value, kind) for value in (*module.parameters(), *module.buffers()))


@contextmanager
def _unchanged(torch: Any, module: Any) -> Iterator[None]:
    """Restore buffers and plain attributes of a model at the end; new running statistics get their first values."""
    lazy, parts = torch.nn.modules.lazy.LazyModuleMixin, list(module.modules())
    kinds = torch.nn.modules.batchnorm._LazyNormBase, torch.nn.parameter.UninitializedTensorMixin
    norms = [part for part in parts if isinstance(part, kinds[0])]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers() if not isinstance(buffer, kinds[1])]
    attributes = [(vars(part), plain_settings(part)) for part in parts if not isinstance(part, lazy)]
    yield
    for norm in norms:
        norm.reset_running_stats()
    for buffer, value in buffers:
        buffer.copy_(value)
    for now, before in attributes:
        now.update(before)
