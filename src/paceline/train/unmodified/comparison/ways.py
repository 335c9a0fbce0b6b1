"""The known kinds of calls of a model: how each is split, and when it is compared with the whole batch again.

A model can start to mix rows later in training. So comparisons are made at the first calls of a kind, then less and
less often. Between them, the operations of each call, as autograd has recorded them, are compared with those of earlier
calls. New operations request a comparison. The request is sent to the other ranks with the outputs of the call, which
is then compared at once. On GPUs, and for models whose outputs are not combined, the request is sent with the
gradients, and the next comparison uses the inputs of the call with new operations. At the end of the program, the last
call of each kind is compared once more.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.train.attribute_snapshot import PLAIN, AttributeSnapshot, with_attributes
from paceline.train.unmodified.account import Account
from paceline.train.unmodified.call import Call
from paceline.train.unmodified.joins import Way
from paceline.train.unmodified.weights import shards

COMPARED_AT = frozenset([1, 3, 6, 12, 23, 44, 80, 149, 279])  # calls after the first one
COMPARED_EVERY = 500
_MOST_NUMBERS = 8  # sets of number arguments that are compared at their first call
_NUMBERS_EVERY = 32  # calls between comparisons with further sets
_SEEN_AT_FIRST = 64  # calls whose operations are checked; then every `_SEEN_EVERY` calls, as that takes time
_SEEN_EVERY = 8
_ASKED_OF_ORDER = 3  # requests for one order of operations, as later weights may not lead to the order again
_HOOK = "a hook on a tensor"
_FUNCTION = "the autograd function"
_OF_LIBRARIES = ("torch.", "paceline.")
_MOST_ASKED = 16  # requests for orders in total; after them only new operations request


@dataclass(frozen=True)
class _Last:
    """The last compared call of a kind of call.

    Attributes:
        leaves: The flattened inputs.
        spec: The structure of the inputs.
        rows: The number of rows.
        is_cut: For each input whether each rank gets its rows.
        numbers: The Python numbers among the inputs.
        modes: Whether each submodule was in training mode.
        state: A digest of the attributes and parameters of the model.
        before: The plain attributes and small buffers of the model before the call.
    """

    leaves: Sequence[Any]
    spec: Any
    rows: int
    is_cut: tuple[bool, ...]
    numbers: tuple[Any, ...]
    modes: tuple[bool, ...]
    state: int
    before: AttributeSnapshot

    def as_call(self, called: Call) -> Call:
        """Return a call of the same model with these inputs."""
        return replace(called, leaves=self.leaves, spec=self.spec, rows=self.rows, is_cut=self.is_cut)


@dataclass
class _Kind:
    """The state of one kind of call.

    Attributes:
        ways: How calls are split, by the Python numbers among their inputs.
        since: The number of calls since the last comparison.
        calls: The number of all calls.
        last: The last call whose operations were looked at; None before.
        first: The CRC32 of the names of the first call's operations, in order; None before.
        orders: The number of calls with each CRC32 other than `first`.
        names: The names of all operations so far.
    """

    ways: dict[Any, Way] = field(default_factory=dict)
    since: int = 0
    calls: int = 0
    last: _Last | None = None
    first: int | None = None
    orders: Counter[int] = field(default_factory=Counter)
    names: set[str] = field(default_factory=set)

    def is_odd(self, names: Sequence[str]) -> bool:
        """Return whether the operations of a call are new or in a new order, so that a comparison is needed.

        Some models have their operations in another order in each call. After `_MOST_ASKED` such calls, only operations
        that no earlier call had lead to a comparison.
        """
        order, has_new = zlib.crc32(" ".join(names).encode()), not self.names.issuperset(names)
        self.names.update(names)
        if self.first is None:
            self.first = order
        if order == self.first:
            return False
        self.orders[order] += 1
        asks_for_order = self.orders[order] <= _ASKED_OF_ORDER and self.orders.total() <= _MOST_ASKED
        return has_new or asks_for_order


class Ways:
    """The results of the comparisons of one model, by the kind of call.

    Args:
        account: The digests of this rank; requests are sent to the other ranks with them.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._kinds: dict[Any, _Kind] = {}
        self._now = _Kind()
        self._calls = 0  # of the model
        self._settings: int | None = None  # digest at the end of the last call whose operations were looked at
        self._changes = 0  # of settings, between calls
        self._before: AttributeSnapshot | None = None  # before the current call, if its operations are looked at

    def find(self, called: Call, look: Callable[[Call, Way | None], Way]) -> Way:
        """Return how a call is split, after a comparison if one is due.

        The Python numbers among the inputs belong to the kind of a call. A model that gets a new number in each call,
        such as a step, is compared again only after `_NUMBERS_EVERY` calls.

        Args:
            called: The call.
            look: Compares a call with the whole batch, given the call and the result of the last comparison or None.
        """
        self._calls += 1
        called = replace(called, number=self._calls)
        known, numbers = self._kinds.setdefault(called.kind(), _Kind()), called.numbers()
        self._now = known
        known.since, known.calls = known.since + 1, known.calls + 1
        self._note_settings(called.module)
        self._before = AttributeSnapshot.take(called.module) if self._is_watched(called) else None
        way = known.ways.get(numbers)
        if way is None and len(known.ways) >= _MOST_NUMBERS and known.since < _NUMBERS_EVERY:
            way = next(reversed(known.ways.values()))
        if way is not None:
            way.calls += 1
            if not self._is_due(way):
                return way
        other, before = self._to_compare(called, known, way)
        with with_attributes(called.module, before):
            return self._compared(called, other, way, look)

    def compare_now(self, called: Call, way: Way, look: Callable[[Call, Way | None], Way]) -> None:
        """Compare the call that was just made, if any rank has requested a comparison with its outputs.

        At this time, the variables of the program still have the values that the call has used. The counters of the
        model are set to their values from before the call.

        Args:
            called: The call.
            way: The result of `find` for this call.
            look: The function that compares calls, as for `find`.
        """
        called = replace(called, number=self._calls)
        if way.requests != self._account.requests:
            with with_attributes(called.module, self._before):
                self._compared(called, called, way, look)

    def _compared(self, called: Call, other: Call, way: Way | None, look: Callable[[Call, Way | None], Way]) -> Way:
        """Compare a call of the same kind as `called`, and keep the result for this kind."""
        found = look(other, way)
        found.calls = way.calls if way is not None else 0
        found.requests, self._now.ways[called.numbers()], self._now.since = self._account.requests, found, 0
        return found

    def _note_settings(self, module: Any) -> None:
        """Ask for a comparison if the program has changed a setting of the model since its last call.

        Changes that the model makes during its calls do not count, such as those of a counter.
        """
        before, self._settings = self._settings, None
        if before is not None and before != _settings(module):
            self._changes += 1
            if self._changes <= _MOST_ASKED:
                self._account.request()

    def _is_due(self, way: Way) -> bool:
        due = way.calls in COMPARED_AT or not way.calls % COMPARED_EVERY
        return due or not way.settled or way.requests != self._account.requests

    def _to_compare(self, called: Call, known: _Kind, way: Way | None) -> tuple[Call, AttributeSnapshot | None]:
        """Return the call to compare: the given one, or the last call if a rank has requested a comparison."""
        if way is None or known.last is None or way.requests == self._account.requests:
            return called, None
        return known.last.as_call(called), known.last.before

    def at_end(self, called: Call) -> Iterator[tuple[Call, Way, tuple[bool, ...], AttributeSnapshot]]:
        """Yield the last training call of each kind of call, if it was not followed by a comparison.

        Nothing is yielded if the program has changed the model since, for example to export it.

        Args:
            called: A call of the model; its inputs do not count.

        Yields:
            The call, the result of the last comparison, whether each submodule was in training mode, and the
            attributes of the model before the call.
        """
        state = _state(called.module)
        for known in self._kinds.values():
            last = known.last
            way = None if last is None or not known.since else known.ways.get(last.numbers)
            if last is not None and way is not None and way.splits and last.modes[0] and last.state == state:
                yield last.as_call(replace(called, number=self._calls)), way, last.modes, last.before

    def _is_watched(self, called: Call) -> bool:
        """Return whether the operations of the current call are looked at."""
        calls = self._now.calls
        return called.spread.torch.is_grad_enabled() and (calls <= _SEEN_AT_FIRST or not calls % _SEEN_EVERY)

    def note(self, called: Call, given: Sequence[Any], result: Any) -> None:
        """Check the operations of the call that `find` was given last, and request a comparison if they are new.

        Args:
            called: The call, with the inputs of the whole batch.
            given: The inputs of this rank.
            result: The result for this rank's rows.
        """
        known, torch = self._now, called.spread.torch
        if self._before is None:
            return
        self._settings = _settings(called.module)
        known.last = _Last(
            leaves=[_apart(torch, leaf) for leaf in called.leaves],
            spec=called.spec,
            rows=called.rows,
            is_cut=called.is_cut,
            numbers=called.numbers(),
            modes=tuple(part.training for part in called.module.modules()),
            state=_state(called.module),
            before=self._before,
        )
        names = [*[_HOOK] * called.spread.hooks, *_operations(torch, given, result)]
        called.spread.hooks = 0
        if shards.is_split(called.module) and known.first is not None:
            self._check_backward(called, sorted({*names} - known.names))
        if known.is_odd(names):
            self._account.request()

    def _check_backward(self, called: Call, new: Sequence[str]) -> None:
        """End the program if a sharded model uses a hook on a tensor or its own autograd function for the first time.

        Both can change gradients, and the gradients of a sharded model are compared only before the first step.
        """
        own = next((name for name in new if name == _HOOK or name.startswith(_FUNCTION)), None)
        if own is not None:
            called.spread.refuse(
                f"{called.name} uses {own} since call {self._now.calls}, and with shard, Paceline compares gradients "
                "only before the first step; use it from the first call on, or use dp in place of shard"
            )


def _settings(module: Any) -> int:
    """Return a digest of the plain public attributes of all submodules, and of how often buffers were written."""
    written = [buffer._version for buffer in module.buffers() if not buffer.is_inference()]
    return _digest((_attributes(module), written))


def _state(module: Any) -> int:
    """Return a digest of the attributes, hooks and parameters of all submodules, without the values of tensors."""
    parts = [
        (sorted(vars(part)), *map(len, (part._forward_hooks, part._forward_pre_hooks))) for part in module.modules()
    ]
    weights = [(id(weight), weight.dtype, weight.device, weight.requires_grad) for weight in module.parameters()]
    return _digest((_attributes(module), parts, weights))


def _attributes(module: Any) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for part in module.modules()
        for name, value in vars(part).items()
        if type(value) in PLAIN and name[0] != "_" and name != "training"
    ]


def _digest(value: Any) -> int:
    return zlib.crc32(repr(value).encode("utf-8", "surrogateescape"))


def _apart(torch: Any, leaf: Any) -> Any:
    """Return an input detached from the autograd graph that computed it."""
    is_computed = isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None
    return leaf.detach().requires_grad_() if is_computed else leaf


def _operations(torch: Any, given: Sequence[Any], result: Any) -> Iterator[str]:
    """Yield the names of the autograd nodes of a call, from its outputs to its inputs."""
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = {leaf.grad_fn for leaf in given if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            kind = getattr(node, "_forward_cls", None)
            if kind is None or kind.__module__.startswith(_OF_LIBRARIES):
                yield node.name()
            else:
                yield f"{_FUNCTION} {kind.__name__}"
            waiting += [following for following, _ in node.next_functions if following is not None]
