"""Measures by how much rounding changes the results of the whole model.

The model runs once or twice more. In the first run, the last bits of the parameters are changed. In the second run, the
model is in double precision, and the parameters are changed by more, so that ReLUs and maxima that are close to a tie
decide otherwise. A model that is in double precision already has no second run. The last run also finds the biases that
do not influence the loss, such as a bias before BatchNorm. The true gradient of such a bias is 0; the computed gradient
is the rounding error of a sum whose terms cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

from paceline.train.comparison import differences, synced
from paceline.train.double_precision import as_double, in_double

_SECOND_CHANGE = 2.0**-18  # relative change of parameters in the second run, 16 times that of the first run in fp32
_ZERO = 1e-9  # gradient of a bias without influence, relative to the sum of its absolute terms, in double precision
_ROUNDED = {
    8: 2e-12,
    4: 1e-3,
    2: 2.0**-7,
}  # its rounding error in that unit, by bytes of an element; fp32: 3e-4 measured
Values = Mapping[str, Any]  # outputs, losses and gradients by name; None for a weight without a gradient


def measured(whole: Any, item_bytes: int, first: Values, again: Callable[[], Values]) -> dict[str, float]:
    """Return by how much rounding changes each value: the root mean square over the elements of the value.

    Args:
        whole: The whole model; its parameters are the same afterwards.
        item_bytes: Bytes of an element of the format in which it computes.
        first: The values that the model computed before.
        again: Runs the whole model once more on the same samples, and returns the values.
    """
    kept = {name: None if value is None else value.detach().clone() for name, value in first.items()}
    terms: dict[str, float] = {}
    is_double = item_bytes == 8
    with (
        _changed(whole, differences.last_bits(item_bytes)),
        _noting_terms(whole, terms) if is_double else nullcontext(),
    ):
        exact = again()
        found = changes = _changes(kept, exact)
    if not is_double:
        try:
            with in_double(whole), _changed(whole, _SECOND_CHANGE), _double_inside(whole), _noting_terms(whole, terms):
                exact = again()
                changes = _changes(kept, exact)
        except (RuntimeError, TypeError):  # the model has tensors of its own in fp32
            return found
    for name, size in terms.items():
        gradient = exact.get(name)
        if gradient is not None and float(gradient.abs().max()) <= _ZERO * size:
            changes[name] = max(changes[name], _ROUNDED[item_bytes] * size / differences.times(item_bytes))
    return {name: max(change, changes[name]) for name, change in found.items()}


def _changes(first: Values, again: Values) -> dict[str, float]:
    pairs = {name: (value, again.get(name)) for name, value in first.items()}
    return {
        name: 0.0 if one is None or other is None else differences.noise_of(one, synced.full(other))
        for name, (one, other) in pairs.items()
    }


@contextmanager
def _changed(whole: Any, share: float) -> Iterator[None]:
    """Inside the context, make each element of the parameters larger or smaller by a share, or leave it, by chance."""
    import torch

    bits = torch.Generator().manual_seed(0)
    kept = [(value, value.detach().clone()) for value in whole.parameters() if value.is_floating_point()]
    try:
        with torch.no_grad():
            for value, _ in kept:
                signs = torch.randint(-1, 2, value.shape, generator=bits).to(value)
                value.mul_(1 + signs * share)
        yield
    finally:
        with torch.no_grad():
            for value, before in kept:
                value.copy_(before)


@contextmanager
def _double_inside(whole: Any) -> Iterator[None]:
    """Inside the context, convert the inputs of a model to double precision and its outputs to fp32, for the loss.

    Autocast of the caller is off while the model runs.
    """
    import torch
    from torch.utils._pytree import tree_map

    exact: list[Any] = []

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        exact.append(torch.autocast(next(module.parameters()).device.type, enabled=False))
        exact[-1].__enter__()
        return tree_map(as_double, args), tree_map(as_double, kwargs)

    def after(_: Any, __: Any, output: Any) -> Any:
        exact.pop().__exit__(None, None, None)
        return tree_map(_as_single, output)

    with ExitStack() as stack:
        stack.callback(whole.register_forward_pre_hook(before, with_kwargs=True).remove)
        stack.callback(whole.register_forward_hook(after, prepend=True, always_call=True).remove)
        yield


@contextmanager
def _noting_terms(whole: Any, terms: dict[str, float]) -> Iterator[None]:
    """Inside the context, add up the absolute terms of the gradient of each bias.

    The gradient of a bias is the sum of the gradients of the layer's output over all rows and places.

    Args:
        whole: The whole model.
        terms: Receives the sums at the end (mean over the elements of a bias), with the keys of `Values`.
    """
    import torch

    names = {id(value): f"the gradient of {name}" for name, value in whole.named_parameters()}
    summed: dict[str, float] = {}
    raw: dict[int, float] = {}

    def note(name: str, size: int, gradient: Any) -> None:
        summed[name] = summed.get(name, 0.0) + float(gradient.detach().abs().sum()) / size

    def after(module: Any, _: Any, output: Any) -> None:
        bias: Any = getattr(module, "bias", None)
        if id(bias) in names and isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(partial(note, names[id(bias)], bias.numel()))

    def accumulated(value: Any) -> None:
        raw[id(value)] = float(value.grad.norm())

    with ExitStack() as stack:
        stack.callback(torch.nn.modules.module.register_module_forward_hook(after).remove)
        for value in whole.parameters():
            if value.requires_grad:
                stack.callback(value.register_post_accumulate_grad_hook(accumulated).remove)
        yield
        scaled = [(value.grad.norm(), raw[id(value)]) for value in whole.parameters() if id(value) in raw]
        factor = max((float(norm) / before for norm, before in scaled if before), default=1.0)
        terms.update({name: size * factor for name, size in summed.items()})


def _as_single(value: Any) -> Any:
    import torch

    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value
