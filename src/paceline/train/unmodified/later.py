"""A lazy tensor for attributes and containers that a model sets; the ranks combine it when it is first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "pow", "rpow"),
    *("neg", "abs", "getitem", "len", "iter", "float", "int", "bool", "format", "lt", "le", "gt", "ge", "array"),
    *("floordiv", "mod", "and", "or", "xor", "invert", "contains", "index", "reduce_ex", "deepcopy", "setitem"),
)


class Later:
    """A proxy of a tensor of the whole batch, combined over the ranks at the first read; all ranks must read it.

    Args:
        whole: Combines the ranks' parts and returns the tensor.
    """

    def __init__(self, whole: Callable[[], Any]) -> None:
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_found", None)

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute of the tensor, also ``__class__``, so that ``isinstance`` works."""
        if name == "__torch_function__":
            return object.__getattribute__(self, name)
        return getattr(resolved(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(resolved(self), name, value)

    def __repr__(self) -> str:
        return repr(resolved(self))

    def __eq__(self, other: object) -> Any:
        return resolved(self) == other

    def __ne__(self, other: object) -> Any:
        return resolved(self) != other

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with the tensor in place of the proxy."""
        return function(*_resolved_in(args), **_resolved_in(kwargs or {}))


def resolved(value: Any) -> Any:
    """Return the tensor of a `Later`; return any other value unchanged."""
    if type(value) is not Later:
        return value
    found = object.__getattribute__(value, "_found")
    if found is None:
        found = object.__getattribute__(value, "_whole")()
        object.__setattr__(value, "_found", found)
    return found


def _resolved_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _resolved_in(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_resolved_in(each) for each in value)
    return resolved(value)


def _operator(name: str) -> Any:
    def apply(self: Later, *args: Any) -> Any:
        return getattr(resolved(self), name)(*_resolved_in(args))

    return apply


for _name in _OPERATORS:
    setattr(Later, f"__{_name}__", _operator(f"__{_name}__"))
