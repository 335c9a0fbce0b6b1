"""Run a program with its weights on the meta device, without memory, GPU or arithmetic, up to its first step.

A parameter moves to meta when a module registers it. If an operation has a tensor on meta, its other tensors move there
too. A forward on real samples then has shapes but no values: a loss reads as NaN. Requests for other devices are
ignored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from paceline.inprocess.first_step.autocast import MetaAutocast
from paceline.inprocess.first_step.nested import tensors_in

_MOVES = ("to", "cuda", "cpu", "xpu", "pin_memory")
_READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda tensor: math.nan if tensor.is_floating_point() else 0,
    "__float__": lambda tensor: math.nan,
    "__int__": lambda tensor: 0,
    "__index__": lambda tensor: 0,
    "__bool__": lambda tensor: False,
    "__format__": lambda tensor: "nan",
}


def begin(torch: Any, *, counted: bool = False, autocast: MetaAutocast | None = None) -> Callable[[], None]:
    """Put new weights on the meta device, and ignore requests for devices other than the CPU, in this thread.

    Args:
        torch: The module.
        counted: Whether operators are counted. Attention then uses the CPU's fused operator instead of the
            decomposition into single operators that meta uses.
        autocast: Casts the arguments of functions as autocast on a GPU does; None to ignore autocast.

    Returns:
        A function that ends the interception of torch functions.
    """
    _keep_parameters_away(torch)
    mode: Any = _mode_of()(counted, autocast)
    mode.__enter__()
    return lambda: mode.__exit__(None, None, None)


def _keep_parameters_away(torch: Any) -> None:
    module, parameter = torch.nn.Module, torch.nn.Parameter
    original = module.register_parameter

    @functools.wraps(original)
    def register_parameter(self: Any, name: str, param: Any) -> None:
        original(self, name, param)
        if type(param) is parameter and not hasattr(param, "_stands_in") and param.device.type != "meta":
            if not hasattr(param, "_on_meta"):  # a parameter that two modules share stays shared
                made = torch.empty_like(param, device="meta", requires_grad=False)
                param._on_meta = parameter(made, requires_grad=param.requires_grad)
                param._on_meta._stands_in = (
                    True  # another module that registers this parameter leaves it as it is: its device reads as CPU
                )
            self._parameters[name] = param._on_meta

    module.register_parameter = register_parameter


def _mode_of() -> Any:
    import torch
    from torch.overrides import TorchFunctionMode

    class Weightless(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
        """Intercepts every torch function that the program calls."""

        def __init__(self, counted: bool, autocast: MetaAutocast | None) -> None:
            super().__init__()
            self.autocast = autocast
            self.attention = torch._C._nn.scaled_dot_product_attention if counted else None

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called, named = func, dict(kwargs or {})
            if func is self.attention:
                called = functools.partial(_flash, repeats=self.autocast is not None)
            if self.autocast is not None:
                args, named = self.autocast.cast(getattr(func, "__name__", ""), args, named)
            return _called(torch, called, args, named)

    return Weightless


def _called(torch: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", "")
    first = args[0] if args else None
    if func == torch.Tensor.is_meta.__get__:
        return False  # programs ask in order to know whether a model can be trained
    if func == torch.Tensor.device.__get__ and args[0].device.type == "meta":
        return torch.device("cpu")  # programs compare devices of tensors, which must be equal
    if name in _MOVES and isinstance(first, torch.Tensor):
        return _moved(torch, first, [*args[1:], *kwargs.values()])
    if name in _READS and isinstance(first, torch.Tensor) and first.device.type == "meta":
        return _READS[name](first)
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "meta":
        kwargs["device"] = "cpu"
    if any(tensor.device.type == "meta" for tensor in tensors_in(torch, (args, kwargs))):
        args, kwargs = _on_meta(torch, args), _on_meta(torch, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
    return func(*args, **kwargs)


def _flash(query: Any, key: Any, value: Any, *args: Any, repeats: bool, **kwargs: Any) -> Any:
    """Compute attention with the CPU's flash operator where the CPU would use it.

    A GPU also uses flash attention for grouped heads: with `repeats`, their keys and values are repeated.
    """
    import torch

    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    plain = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    if repeats and query.dim() == 4 and plain.pop("enable_gqa", False) and query.shape[1] % key.shape[1] == 0:
        kwargs.pop("enable_gqa", None)
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    if query.dim() != 4 or plain.get("dropout_p") or plain.get("enable_gqa") or query.shape[1] != key.shape[1]:
        return torch._C._nn.scaled_dot_product_attention(query, key, value, *args, **kwargs)
    named = {name: plain.get(name) for name in ("attn_mask", "scale")}
    try:
        return attend(query, key, value, 0.0, bool(plain.get("is_causal")), **named)[0]
    except RuntimeError:  # a mask or a type that the CPU's operator does not support
        return torch._C._nn.scaled_dot_product_attention(query, key, value, *args, **kwargs)


def _moved(torch: Any, tensor: Any, asked: list[Any]) -> Any:
    """Convert a tensor to the requested data type, and leave it on its device."""
    kinds = [getattr(each, "dtype", each) for each in asked]
    kind = next((each for each in kinds if isinstance(each, torch.dtype)), tensor.dtype)
    return tensor if kind == tensor.dtype else torch.Tensor.to(tensor, dtype=kind)


def _on_meta(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "meta" else value.to("meta")
    if isinstance(value, dict):
        return {key: _on_meta(torch, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_on_meta(torch, each) for each in value)
    return value
