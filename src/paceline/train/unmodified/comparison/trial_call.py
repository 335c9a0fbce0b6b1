"""A call of a model that is made to be compared: it leaves nothing behind, and its gradients are kept apart.

A trial call gets copies of its inputs. Attributes, buffers, containers, random numbers and gradients are put back
after it. Its backward pass starts from pseudo-random gradients of its outputs, the same for all calls compared.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paceline.train.unmodified import draws
from paceline.train.unmodified.call import Call
from paceline.train.unmodified.snapshot import Place, Snapshot
from paceline.train.unmodified.weights import shards

_SCALE = 4096.0  # of gradients in a second backward pass, which must become as much larger


@dataclass
class Trial:
    """What a trial call gave.

    Attributes:
        leaves: What it returned, flattened.
        spec: The structure of what it returned.
        state: What it changed, by name: tensors, and Python values.
        places: Where that is.
        lasting: Names of places that the program keeps, and that hold a new object.
        inputs: For each input the tensor that a gradient is wanted for, or None.
        changes: Inputs that it changed in place.
        rewrites: It changed the containers that it was given.
        gradients: Of the weights.
        of_inputs: Gradients of inputs that want one.
        late: What its backward pass changed, by name.
    """

    leaves: list[Any]
    spec: Any
    state: dict[str, Any]
    places: dict[str, Place]
    lasting: set[str]
    inputs: list[Any]
    changes: list[int]
    rewrites: bool
    gradients: list[Any] = field(default_factory=list)
    of_inputs: list[Any] = field(default_factory=list)
    late: dict[str, Any] = field(default_factory=dict)


class TrialCalls:
    """Trial calls of one model with the inputs of one call.

    Args:
        call: The call that is about to be made.
    """

    def __init__(self, call: Call) -> None:
        self.call, self._torch, self._spread = call, call.spread.torch, call.spread
        # FSDP2 keeps what a backward pass needs in one place: one in between would spoil that of the program.
        self.graded = self._torch.is_grad_enabled() and not shards.is_split(call.module)
        self.weights = [weight for weight in call.module.parameters() if weight.requires_grad]
        self._random = draws.state(self._torch)
        objects = [leaf for leaf in call.leaves if not isinstance(leaf, self._torch.Tensor)]
        self._snapshot = Snapshot(self._torch, call.module, objects)

    def forward(self, call: Call, part: tuple[int, int] | None, mode: Any, shaken: int = 0) -> Trial:
        """Call the model with a part of the rows, or with all.

        Args:
            call: The call; says which inputs are cut.
            part: The first row and the one behind the last; None for all rows.
            mode: A context in which it is called.
            shaken: The bit of each weight that is flipped for this call, such as the last one (1); 0: none.
        """
        pytree = self._torch.utils._pytree
        wanted, given = zip(*(self._input(call, place, part) for place in range(len(call.leaves))), strict=True)
        versions = [_version(self._torch, leaf) for leaf in given]
        args, kwargs = call.with_leaves(given)
        draws.set_state(self._torch, self._random)
        try:
            with (
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
            return Trial(leaves, spec, *self._changed(), list(wanted), changes, rewrites)
        finally:
            self._snapshot.restore()

    def backward(self, trial: Trial, sources: Sequence[tuple[Any, Any]], scale: float, *, split: bool) -> None:
        """Compute the gradients of a trial call.

        Args:
            trial: The call; its gradients are set.
            sources: Outputs, and their gradients.
            scale: By which the gradients of outputs are multiplied; those found are divided by it.
            split: The call has a part of the rows.
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
        """Return whether a call uses weights that the model does not have."""
        if shards.is_split(self.call.module):
            return False  # FSDP2 puts gathered weights in the place of the split ones
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
        """Go on with the random numbers from before all trial calls."""
        draws.set_state(self._torch, self._random)

    def _input(self, call: Call, place: int, part: tuple[int, int] | None) -> tuple[Any, Any]:
        """Return the tensor that a gradient is wanted for, or None; and what the model is given."""
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
    """Let trial calls print nothing, and run uncompiled; in full precision, unless `autocast` says otherwise."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
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
    """Flip a bit of each weight; the same change again puts it back."""
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
def zeros_filled(torch: Any, module: Any) -> Iterator[None]:
    """Give weights that are all zero small values, the same on all ranks, so that what they multiply counts."""
    generator = torch.Generator().manual_seed(0)
    filled = []
    for weight in module.parameters():
        plain = weight.requires_grad and weight.is_floating_point() and not hasattr(weight, "_local_tensor")
        if plain and weight.numel() and not bool(weight.detach().any()):
            filled.append(weight)
            drawn = torch.randn(weight.shape, generator=generator) * 0.05
            weight.data.copy_(drawn)
    try:
        yield
    finally:
        for weight in filled:
            weight.data.zero_()


def source_gradient(torch: Any, value: Any, place: int) -> Any:
    """Return the pseudo-random gradient of an output; of a number, 1."""
    if not value.dim():
        return torch.ones_like(value)
    generator = torch.Generator().manual_seed(place)
    drawn = torch.randn(value.shape, generator=generator, dtype=torch.float32)
    return drawn.to(value.device, value.dtype)


def scale_of(*, low_precision: bool) -> float:
    """Return how much larger gradients are in the second backward pass."""
    return 1.0 if low_precision else _SCALE
