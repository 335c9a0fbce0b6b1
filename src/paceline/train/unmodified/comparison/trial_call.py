"""Trial calls of a model: calls that are made only to be compared, without side effects on the program.

A trial call gets copies of its inputs. Afterwards attributes, buffers, containers, random states and gradients are
restored. The backward pass starts from pseudo-random gradients of the outputs, the same for all compared calls.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.train.double_precision import as_double, in_double
from paceline.train.unmodified import draws
from paceline.train.unmodified.call import Call
from paceline.train.unmodified.comparison.outputs import Said, noted
from paceline.train.unmodified.exchange import Exchange
from paceline.train.unmodified.snapshot import Place, Snapshot
from paceline.train.unmodified.weights import shards

_SMALL = 0.1  # a weight is small below this, divided by the root of the number of inputs
_FILLED = 0.05  # standard deviation of the random values that replace small weights
_SCALE = 4096.0  # factor of the second backward pass, to check that gradients are linear


@dataclass
class Trial:
    """The result of a trial call.

    Attributes:
        leaves: The flattened outputs.
        spec: The structure of the outputs.
        state: The tensors and Python values that the call changed, by the name of their place.
        places: The attributes, items and variables that the call changed, by name.
        lasting: The names of changed places in older containers that now hold a new object.
        inputs: For each input the tensor that collects its gradient, or None.
        changes: The indices of the inputs that the call changed in place.
        rewrites: Whether the call changed the containers of its inputs.
        said: What the call printed and wrote.
        writes_weights: Whether the call wrote to a weight, such as by a mask. Gradients are then not compared.
        gradients: The gradients of the trained weights; None for a weight without a gradient.
        of_inputs: The gradients of the inputs, or None.
        late: The values that the backward pass changed, by the name of their place.
    """

    leaves: list[Any]
    spec: Any
    state: dict[str, Any]
    places: dict[str, Place]
    lasting: set[str]
    inputs: list[Any]
    changes: list[int]
    rewrites: bool
    said: Said
    writes_weights: bool
    gradients: list[Any] = field(default_factory=list)
    of_inputs: list[Any] = field(default_factory=list)
    late: dict[str, Any] = field(default_factory=dict)

    def tensors(self, torch: Any) -> list[tuple[int | str, Any]]:
        """Return the tensors that the call returned or changed, each after its output index or its name."""
        named: list[tuple[int | str, Any]] = [*enumerate(self.leaves), *sorted(self.state.items())]
        return [(name, value) for name, value in named if isinstance(value, torch.Tensor)]


class TrialCalls:
    """Makes trial calls of a model with the inputs of one call.

    Args:
        call: The call that the program is about to make.
    """

    def __init__(self, call: Call) -> None:
        self.call, self._torch, self._spread = call, call.spread.torch, call.spread
        # FSDP2 has one state for the backward pass: a trial backward pass would corrupt that of the program.
        self.graded = self._torch.is_grad_enabled() and not shards.is_split(call.module)
        self.weights = [weight for weight in call.module.parameters() if weight.requires_grad]
        self._random = draws.state(self._torch)
        objects = [leaf for leaf in call.leaves if not isinstance(leaf, self._torch.Tensor)]
        self._snapshot = Snapshot(self._torch, call.module, objects)

    def forward(self, call: Call, part: tuple[int, int] | None, mode: Any, shaken: int = 0) -> Trial:
        """Call the model with a part of the rows, or with all rows.

        Args:
            call: The call, which says which inputs are cut.
            part: The rows as a half-open range (first row, end); None for all rows.
            mode: A context around the call, such as `replay.recording`.
            shaken: The bit mask that is flipped in each weight during this call, such as 1 for the last bit; 0: none.
        """
        pytree = self._torch.utils._pytree
        wanted, given = zip(*(self._input(call, place, part) for place in range(len(call.leaves))), strict=True)
        versions = [_version(self._torch, leaf) for leaf in given]
        args, kwargs = call.with_leaves(given)
        draws.set_state(self._torch, self._random)
        try:
            with (
                noted() as said,
                self._spread.inside(split=part is not None),
                _flipped(self._torch, call.module, shaken),
                self._torch.set_grad_enabled(self.graded),
                mode,
            ):
                result = call.forward(*args, **kwargs)
            leaves, spec = pytree.tree_flatten(result)
            after, after_spec = pytree.tree_flatten((args, kwargs))
            rewrites = after_spec != call.spec or any(one is not two for one, two in zip(after, given, strict=True))
            changes = [place for place, leaf in enumerate(given) if _version(self._torch, leaf) != versions[place]]
            state, places, lasting = self._changed()
            writes = any(isinstance(place.get(), self._torch.nn.Parameter) for place in places.values())
            return Trial(leaves, spec, state, places, lasting, list(wanted), changes, rewrites, said, writes)
        finally:
            self._snapshot.restore()

    def backward(self, trial: Trial, sources: Sequence[tuple[Any, Any]], scale: float, *, split: bool) -> None:
        """Compute the gradients of a trial call, and store them in its result.

        Args:
            trial: The result of the call; `gradients`, `of_inputs` and `late` are set.
            sources: Outputs with the gradients from which the backward pass starts.
            scale: The factor of these gradients; the computed gradients are divided by it.
            split: Whether the call had a part of the rows.
        """
        spread, torch = self._spread, self._torch
        sources = [(value, gradient * scale) for value, gradient in sources if value.requires_grad]
        if not sources:
            trial.gradients, trial.of_inputs = [None] * len(self.weights), [None] * len(trial.inputs)
            return
        kept = [(weight, weight.grad) for weight in self.weights]
        for weight in self.weights:
            weight.grad = None
        spread.backward, spread.last_split = spread.backward + 1, split
        try:
            torch.autograd.backward([value for value, _ in sources], [gradient for _, gradient in sources])
            trial.gradients = [self._taken(weight.grad, scale) for weight in self.weights]
            trial.of_inputs = [
                None if each is None or each.grad is None else each.grad / scale for each in trial.inputs
            ]
            trial.late, _, _ = self._changed()
        finally:
            spread.backward -= 1
            shards.forget_used()
            for weight, gradient in kept:
                weight.grad = gradient
            self._snapshot.restore()

    def strange_weights(self, trial: Trial) -> bool:
        """Return whether the outputs depend on leaf tensors that are neither parameters nor inputs of the model."""
        if shards.is_split(self.call.module):
            return False  # FSDP2 replaces the sharded weights by gathered ones
        known = {id(each) for each in (*self.weights, *trial.inputs)}
        values = [value for value in (*trial.leaves, *trial.state.values()) if isinstance(value, self._torch.Tensor)]
        waiting = [value.grad_fn for value in values if value.grad_fn is not None]
        seen = set()
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in known:
                return True
            waiting += [following for following, _ in node.next_functions if following is not None]
        return False

    def end(self) -> None:
        """Restore the random states from before all trial calls."""
        draws.set_state(self._torch, self._random)

    def _input(self, call: Call, place: int, part: tuple[int, int] | None) -> tuple[Any, Any]:
        """Return the tensor that collects the gradient of an input, or None, and the copy that the model gets."""
        leaf = call.leaves[place]
        if not isinstance(leaf, self._torch.Tensor) or isinstance(leaf, self._torch.nn.Parameter) and leaf.is_sparse:
            return None, leaf
        rows = leaf[slice(*part)] if part is not None and call.is_cut[place] else leaf
        own = rows.detach().clone()
        if leaf.requires_grad and self.graded:
            own.requires_grad_()
            return own, own.clone()
        return None, own

    def _changed(self) -> tuple[dict[str, Any], dict[str, Place], set[str]]:
        places = self._snapshot.changed()
        lasting = {name for name, place in places.items() if self._snapshot.lasts(place)}
        return {name: self._kept(place.get(), name in lasting) for name, place in places.items()}, places, lasting

    def _kept(self, value: Any, is_new: bool) -> Any:
        if isinstance(value, self._torch.Tensor) and not is_new and not value.requires_grad:
            return value.clone()
        return value.copy() if hasattr(value, "dtype") and hasattr(value, "copy") else value

    def _taken(self, gradient: Any, scale: float) -> Any:
        if gradient is None:
            return None
        if gradient.layout is not self._torch.strided:
            self._spread.refuse("a gradient is sparse (Embedding(sparse=True)); leave sparse=True out")
        return getattr(gradient, "_local_tensor", gradient).detach() / scale


def _version(torch: Any, leaf: Any) -> int:
    return leaf._version if isinstance(leaf, torch.Tensor) and not leaf.is_inference() else 0


@contextmanager
def apart(torch: Any, spread: Any, *, autocast: bool) -> Iterator[None]:
    """Return a context for trial calls: no output, no `torch.compile`, and no autocast unless `autocast` is set."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # a call in which too few inputs are cut can warn about their shapes
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if not autocast:
            for device in ("cpu", "cuda"):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.cuda.is_available():
            from torch.nn.attention import SDPBackend, sdpa_kernel

            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        spread.on_trial += 1
        stack.callback(spread.trial_over)
        yield


@contextmanager
def _flipped(torch: Any, module: Any, bit: int) -> Iterator[None]:
    """Return a context in which a bit of each weight is flipped; at the end the bit is flipped back."""
    _flip(torch, module, bit)
    try:
        yield
    finally:
        _flip(torch, module, bit)


def _flip(torch: Any, module: Any, bit: int) -> None:
    kinds = {8: torch.int64, 4: torch.int32, 2: torch.int16}
    for weight in module.parameters() if bit else ():
        value = getattr(weight.data, "_local_tensor", weight.data)
        if value.is_floating_point() and value.element_size() in kinds and value.numel():
            value.view(kinds[value.element_size()]).bitwise_xor_(bit if value.element_size() == 4 else 1)


@contextmanager
def call_in_double(torch: Any, call: Call) -> Iterator[Call]:
    """Convert a model to double precision inside the context, and yield its call with inputs in double precision."""
    with in_double(call.module):
        yield replace(call, leaves=[_in_double(torch, leaf) for leaf in call.leaves])


def _in_double(torch: Any, leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
        return leaf
    return as_double(leaf.detach()).requires_grad_(leaf.requires_grad)


@contextmanager
def small_weights_filled(exchange: Exchange, module: Any) -> Iterator[None]:
    """Give weights that are zero or very small random values inside the context, the same on all ranks.

    With such weights, differences of the values that they multiply would not be visible: a last layer that starts at
    zero gives almost the same loss for all samples. Of a sharded weight, each rank fills its own part. All ranks must
    write to the same weights, because they gather a sharded weight again after a write.
    """
    torch, kept = exchange.torch, []
    for number, value in _small_weights(exchange, module):
        kept.append((value, value.clone()))
        value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(number)) * _FILLED)
    try:
        yield
    finally:
        for value, before in kept:
            value.copy_(before)


def _small_weights(exchange: Exchange, module: Any) -> list[tuple[int, Any]]:
    """Return the indices of weights that are small on all ranks, and this rank's parts of them; a collective."""
    trained = [weight for weight in module.parameters() if weight.requires_grad and weight.is_floating_point()]
    parts = [getattr(weight.data, "_local_tensor", weight.data) for weight in trained]
    largest = exchange.objects([float(part.abs().max()) if part.numel() else 0.0 for part in parts])
    limits = [_SMALL / (weight.shape[-1] if weight.dim() > 1 else 1) ** 0.5 for weight in trained]
    return [
        (number, part)
        for number, (part, limit) in enumerate(zip(parts, limits, strict=True))
        if max(of_rank[number] for of_rank in largest) < limit
    ]


def source_gradient(torch: Any, value: Any, name: int | str) -> Any:
    """Return a pseudo-random gradient for an output, with its index or name as the seed; 1 for a number."""
    if not value.dim():
        return torch.ones_like(value)
    generator = torch.Generator().manual_seed(name if isinstance(name, int) else sum(name.encode()))
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float32)
    return drawn.to(value.device, value.dtype)


def scale_of(*, low_precision: bool) -> float:
    """Return the factor of the gradients from which the second backward pass starts."""
    return 1.0 if low_precision else _SCALE
