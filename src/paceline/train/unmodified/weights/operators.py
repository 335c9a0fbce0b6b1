"""Operators that the program itself applies to sharded weights: the results are those of whole weights.

torch applies many operators to a DTensor shard by shard. Operators that torch cannot apply in this way, or whose result
would differ (random numbers, assignments to `data`, writes through views), are applied to the whole tensor on every
rank. In-place changes are copied back to each rank's shard. Every rank runs the whole program, so plain tensors outside
of models are the same on all ranks. Plain tensors within a model belong to this rank's rows, and are not combined with
sharded weights here.
"""

from __future__ import annotations

import functools
import operator
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from paceline.inprocess import hooks
from paceline.train.unmodified.call import digest
from paceline.train.unmodified.state import Spread, memory_of
from paceline.train.unmodified.weights import aliases, followers

_VIEWS = (
    *("__getitem__", "select", "narrow", "split", "chunk", "unbind", "view", "view_as", "reshape", "reshape_as"),
    *("flatten", "unflatten", "ravel", "t", "T", "mT", "H", "mH", "transpose", "swapaxes", "swapdims", "permute"),
    *("movedim", "moveaxis", "squeeze", "unsqueeze", "expand", "expand_as", "diagonal", "unfold", "tensor_split"),
    *("split_with_sizes", "as_strided", "hsplit", "vsplit", "adjoint", "positive", "contiguous", "broadcast_to"),
    *("data", "detach", "real", "imag", "view_as_real", "view_as_complex"),
)
_DRAWS = (
    *("rand_like", "randn_like", "randint_like", "normal_", "uniform_", "bernoulli_", "bernoulli", "random_", "normal"),
    *("exponential_", "log_normal_", "cauchy_", "geometric_", "multinomial", "poisson", "binomial", "rrelu", "rrelu_"),
    *("dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "alpha_dropout_"),
    *("feature_dropout", "feature_dropout_", "feature_alpha_dropout", "native_dropout", "gumbel_softmax"),
)
_SHAPING = (
    "transpose_",
    "t_",
    "squeeze_",
    "unsqueeze_",
    "swapaxes_",
    "swapdims_",
    "resize_",
    "resize_as_",
    "set_",
    "as_strided_",
)
_SAME_SHAPE = ("data", "detach", "contiguous", "positive")  # views that torch can also make of an empty shard
_BY_PIECES = frozenset(
    [
        *("abs", "absolute", "neg", "negative", "sign", "sgn", "signbit", "add", "sub", "subtract", "rsub", "radd"),
        *("mul", "multiply", "rmul", "div", "divide", "true_divide", "truediv", "rtruediv", "rdiv", "floor_divide"),
        *("floordiv", "remainder", "mod", "fmod", "pow", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
        *("sqrt", "rsqrt", "square", "reciprocal", "sigmoid", "tanh", "relu", "erf", "sin", "cos", "tan", "atan"),
        *("sinh", "cosh", "clamp", "clamp_min", "clamp_max", "clip", "maximum", "minimum", "fmax", "fmin", "lerp"),
        *("addcmul", "addcdiv", "where", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "and", "or"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not"),
        *("invert", "round", "floor", "ceil", "trunc", "frac", "nan_to_num", "copy", "zero", "fill", "clone"),
        *("zeros_like", "ones_like", "full_like", "empty_like", "to", "float", "double", "half", "bfloat16", "long"),
        *("int", "bool", "type_as", "sum"),
    ]
)
_LISTS = ("_foreach_", "_fused_")
_REDUCED_LISTS = ("_foreach_max", "_foreach_norm")
_ALWAYS_WHOLE = ("__setitem__", "__reversed__", "index_put_")
_NO_OPERATORS = ("register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad", "zero_grad")
_MOST_DIGESTED = 1 << 16  # elements; larger plain tensors are not compared over the ranks


def patch(spread: Spread) -> None:
    """Patch torch's DTensor so that operators on sharded tensors give the results of whole tensors."""
    from torch.distributed.tensor import DTensor

    operators = _Operators(spread, DTensor)

    def torch_function(kind: Any, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_lookup = followers.is_lookup(_name_of(function), args)
        return True if is_lookup else operators.apply(function, args, kwargs or {})

    patches = {
        "__torch_function__": classmethod(torch_function),
        "__reduce_ex__": lambda self, protocol: _reduced(operators, self, protocol),
        "__deepcopy__": functools.partialmethod(_deep_copied, operators),
        "__repr__": lambda self, **named: repr(operators.copied(self)),
        **{name: _reader(operators, name) for name in followers.READ},
    }
    for name, patch_of in patches.items():
        hooks.install(DTensor, name, patch_of)
    hooks.install(spread.torch.Tensor, "data", _data(operators))


def _data(operators: _Operators) -> property:
    """Return a property that replaces `torch.Tensor.data`: an assigned sharded tensor is gathered first.

    torch does not call `__torch_function__` if only the assigned value, and not the tensor, is of a subclass.
    """
    own = operators.attribute_data

    def assign(tensor: Any, value: Any) -> None:
        own.__set__(tensor, operators.for_data_of(tensor, value))

    return _NamedProperty(own.__get__, assign)


class _NamedProperty(property):
    """A property with a name: `__torch_function__` gets the property as an argument, and identifies it by its name."""

    __name__ = "data"


def whole(value: Any) -> Any:
    """Return the full tensor of a sharded tensor, without gradients; return other values unchanged."""
    return value.detach().full_tensor() if hasattr(value, "full_tensor") else value


def _reduced(operators: _Operators, value: Any, protocol: Any) -> Any:
    """Return what pickle stores of a sharded tensor: a copy as a whole tensor, for a weight with its attributes."""
    found = operators.copied(value)
    if getattr(value, "_is_param", False):
        vars(found).update(followers.attributes_of(value))
    return found.__reduce_ex__(protocol)


def _deep_copied(value: Any, operators: _Operators, memo: dict[int, Any]) -> Any:
    """Return a whole copy of a sharded tensor, once for each `memo` of `copy.deepcopy`."""
    if id(value) not in memo:
        memo[id(value)] = operators.copied(value)
    return memo[id(value)]


def _reader(operators: _Operators, name: str) -> Any:
    """Return a method, such as ``item``, that reads the whole tensor; torch's method reads this rank's shard."""

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(operators.gathered(self), name)(*args, **kwargs)

    return read


class _Operators:
    """Applies operators to sharded tensors.

    Args:
        spread: The state of this rank.
        kind: The class DTensor.
    """

    def __init__(self, spread: Spread, kind: Any) -> None:
        self._spread, self._torch, self._kind = spread, spread.torch, kind
        self.attribute_data = spread.torch._C.TensorBase.data
        self._views: dict[int, dict[int, weakref.ref[Any]]] = {}  # views of shards by memory address and id

    def apply(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function of torch that got a sharded tensor, and return the result for whole tensors."""
        name = _name_of(function)
        args, kwargs = followers.replace_followers(aliases.current((args, kwargs)))
        if function is self._torch.autograd.grad:
            self._spread.refuse(
                "torch.autograd.grad() is given split tensors; use loss.backward(), or use dp in place of shard"
            )
        with self._torch._C.DisableTorchFunctionSubclass():
            if name == "__set__":
                return self._assign(function, args)
            if _is_getter(function, name) or name in _NO_OPERATORS:
                return function(*args, **kwargs)
            if self._spread.split:
                return self._within_a_part(function, args, kwargs)
            if name == "__iter__":
                return iter([self._view(operator.itemgetter(i), "__getitem__", args) for i in range(len(args[0]))])
        if name == "backward":  # its hooks call operators that must be patched too
            return self._torch.autograd.backward((args[0],), *args[1:], **kwargs)
        with self._torch._C.DisableTorchFunctionSubclass():
            return self._operator(function, name, args, kwargs)

    def _within_a_part(self, function: Any, args: Any, kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if "mixed torch.Tensor and DTensor" not in str(error):
                raise
            self._spread.refuse(
                "a model uses weights of another part of itself, which are split at that moment; use dp in place of "
                "shard"
            )

    def _operator(self, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = list(_tensors(self._torch, (args, kwargs)))
        self._note(name, given, args, kwargs)
        split = [each for each in given if isinstance(each, self._kind)]
        if name in _SHAPING and given and isinstance(given[0], self._kind):
            self._spread.refuse(
                f"the shape of a split weight, or of a value computed from one, is changed in place ({name}()); make a "
                "new tensor, or use dp in place of shard"
            )
        changes = name.endswith("_") and not name.endswith("__") or name.startswith("__i")
        if changes or name in _ALWAYS_WHOLE or "out" in kwargs:
            aliases.note_write()
            self._note_written((args[:1], kwargs.get("out")))
        if name in _VIEWS and len(split) == 1 and split[0] is args[0]:
            return self._view(lambda value: function(value, *args[1:], **kwargs), name, args)
        plainly = name in _DRAWS or name in _ALWAYS_WHOLE or "out" in kwargs
        plainly = plainly or getattr(function, "__module__", "") == "torch.nn.init"
        plainly = plainly or changes and isinstance(args[0], self._torch.Tensor) and not isinstance(args[0], self._kind)
        plainly = plainly or any(_origin(each) for each in split)
        if not plainly and _goes_by_pieces(name, args) and self._are_alike(name, given):
            try:
                return function(*args, **kwargs)
            except (RuntimeError, AssertionError, IndexError, TypeError, ValueError):
                pass  # torch cannot apply it to shards; an error of the program is raised again below
        return self._on_whole(function, args, kwargs)

    def _note_written(self, value: Any) -> None:
        """Note the shards that an operator of the program changes."""
        for each in _leaves(value):
            if isinstance(each, self._kind):
                self._spread.note_write(memory_of(each))

    def _note(self, name: str, given: Sequence[Any], args: Any, kwargs: Any) -> None:
        """Add an operator's name and its plain operands to the digest that ranks compare.

        Each rank changes its own shard with these operands, so different operands would go unnoticed.
        """
        if self._spread.backward or self._spread.on_trial:
            return
        numbers = [each for each in _leaves((args, kwargs)) if isinstance(each, bool | int | float | complex)]
        plain = [each for each in given if not isinstance(each, self._kind) and each.layout is self._torch.strided]
        found = [digest(self._torch, each) for each in plain if each.numel() <= _MOST_DIGESTED]
        self._spread.operands = (self._spread.operands + zlib.crc32(repr((name, numbers, found)).encode())) % (1 << 62)

    def _are_alike(self, name: str, given: Sequence[Any]) -> bool:
        """Return whether the sharded tensors of an operator are split alike, and its other tensors have one element.

        The result must be the same on all ranks, so it does not depend on a rank's shard, which can be empty.
        """
        split = [each for each in given if isinstance(each, self._kind)]
        alike = name.startswith(_LISTS) or len({(each.shape, each.placements) for each in split}) == 1
        others = [each for each in given if not isinstance(each, self._kind)]
        return alike and all(
            each.numel() == 1 and each.dim() <= split[0].dim() and not each.requires_grad for each in others
        )

    def _on_whole(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Apply a function to whole tensors, and copy in-place changes back to this rank's shards."""
        taken: dict[int, tuple[Any, _Gathered]] = {}

        def gather(value: Any) -> Any:
            if not isinstance(value, self._kind):
                return value
            if id(value) not in taken:
                taken[id(value)] = (value, _Gathered(self._torch, value))
            return taken[id(value)][1].value

        found = function(*_mapped(args, gather), **_mapped(kwargs, gather))
        always = _name_of(function) in aliases.UNVERSIONED
        for value, gathered in taken.values():
            if gathered.is_changed() or always and value is args[0]:
                self._write_back(gathered)
            if found is gathered.value:
                return value
        return found

    def _write_back(self, gathered: _Gathered) -> None:
        aliases.note_write()
        for split, value in gathered.chain():
            if any(place.is_partial() for place in split.placements):
                self._spread.refuse(
                    "a value computed from split weights is changed in place, which torch cannot do piece by piece; "
                    "compute a new one, or use dp in place of shard"
                )
            self._note_written(split)
            split._local_tensor.data.copy_(_piece(self._kind, split, value.detach()))

    def _view(self, function: Callable[[Any], Any], name: str, args: Any) -> Any:
        """Return a view of a sharded tensor.

        A result that shares no memory with the tensor stores the tensor and the view function, so that in-place changes
        of the result can be written back to the tensor.
        """
        base = args[0]
        found = None
        if not _origin(base) and (name in _SAME_SHAPE or not _has_an_empty_shard(base)):
            try:
                found = function(base)
            except (RuntimeError, AssertionError):
                found = None
        if found is None:
            found = function(_Gathered(self._torch, base).value)
        if isinstance(found, list | tuple):
            each = [
                self._remembering(base, value, functools.partial(_entry_of, function, place))
                for place, value in enumerate(found)
            ]
            return type(found)(each) if type(found) in (list, tuple) else each
        return self._remembering(base, found, function)

    def _remembering(self, base: Any, found: Any, function: Callable[[Any], Any]) -> Any:
        if not isinstance(found, self._torch.Tensor):
            return found
        if not isinstance(found, self._kind):
            from torch.distributed.tensor import Replicate

            found = self._kind.from_local(found, base.device_mesh, [Replicate()] * base.device_mesh.ndim)
        if not _share_memory(base, found):
            found._paceline_origin = (base, function)
        elif found is not base:
            self._note_view(found)
        return found

    def _note_view(self, view: Any) -> None:
        """Store a weak reference to a tensor that shares memory with a shard."""
        views, key = self._views.setdefault(_address(view), {}), id(view)
        views[key] = weakref.ref(view, lambda _: views.pop(key, None))

    def _copy_views(self, weight: Any) -> None:
        """Give the views of a shard memory of their own, before the program assigns to `weight.data`.

        In one process, the assignment gives the weight new memory, and earlier views keep the old values. Parameters
        are left out, because torch stores a parameter as a view of the tensor from which it was created.
        """
        for reference in list(self._views.pop(_address(weight), {}).values()):
            view = reference()
            if view is not None and not isinstance(view, self._torch.nn.Parameter):
                view._local_tensor = view._local_tensor.clone()

    def _is_of_a_weight(self, value: Any) -> bool:
        """Return whether a sharded tensor is a weight, or shares memory with a weight."""
        return isinstance(value, self._torch.nn.Parameter) or id(value) in self._views.get(_address(value), {})

    def _assign(self, function: Any, args: Any) -> None:
        """Assign to an attribute, such as ``data`` or ``grad``; the target or the value is sharded."""
        aliases.note_write()
        target, value = args
        name = function.__self__.__name__
        if name not in ("data", "grad") or value is None:
            function(target, value)
            return
        if not isinstance(target, self._kind):
            function(target, self.gathered(value))
            return
        if name == "data":
            self._assign_data(target, value)
        elif isinstance(value, self._kind) and value.placements == target.placements and not _origin(value):
            function(target, value)
        else:
            grad = self._torch.zeros_like(target)
            grad._local_tensor.copy_(_piece(self._kind, target, self.gathered(value)))
            function(target, grad)

    def for_data_of(self, tensor: Any, value: Any) -> Any:
        """Return the value to assign to ``tensor.data``. If the tensor is not sharded, the value is gathered."""
        if not isinstance(value, self._kind) or isinstance(tensor, self._kind):
            return value
        if self._is_of_a_weight(value):
            self._spread.refuse(
                "a tensor that is not split gets the memory of a split weight (`tensor.data = weight.data`), so that "
                "both are one; copy the values (`copy_` or `clone()`), or use dp in place of shard"
            )
        return self.gathered(value)

    def _assign_data(self, target: Any, value: Any) -> None:
        if value.shape != target.shape or value.dtype != target.dtype:
            self._spread.refuse(
                f"a split weight of shape {tuple(target.shape)} and {target.dtype} is replaced by a tensor of shape "
                f"{tuple(value.shape)} and {value.dtype}; change shapes and formats before the first call in training, "
                "or use dp in place of shard"
            )
        same = isinstance(value, self._kind) and value.placements == target.placements and not _origin(value)
        local = value._local_tensor if same else _piece(self._kind, target, self.gathered(value))
        self._note_written(target)
        aliases.part(target)
        self._copy_views(target)
        target._local_tensor.data.copy_(local.detach())
        if same and not isinstance(value, self._torch.nn.Parameter):  # as in one process, both share memory
            value._local_tensor = target._local_tensor
            self._note_view(value)
        aliases.adopt(value, target)

    def gathered(self, value: Any) -> Any:
        """Return a sharded tensor as a whole tensor, without gradients."""
        if not isinstance(value, self._kind):
            return value.detach()
        with self._torch._C.DisableTorchFunctionSubclass(), self._torch.no_grad():
            return _Gathered(self._torch, value).value.detach()

    def copied(self, value: Any) -> Any:
        """Return a copy of a sharded tensor as a whole plain tensor or parameter."""
        found = self.gathered(value).clone()
        if getattr(value, "_is_param", False):
            return self._torch.nn.Parameter(found, requires_grad=value.requires_grad)
        return found.requires_grad_(value.requires_grad and value.is_leaf)


class _Gathered:
    """The whole tensor of a sharded tensor; a view with a stored base is computed again from the whole base."""

    def __init__(self, torch: Any, split: Any) -> None:
        origin = _origin(split)
        self.split = split
        self._base = _Gathered(torch, origin[0]) if origin else None
        if self._base is None:
            self.value = split.full_tensor()
            if not self.value.requires_grad or not torch.is_grad_enabled():
                self.value = self.value.detach().clone()  # a replicated tensor is returned as it is
        else:
            self.value = origin[1](self._base.value)
        self._before = self.value.clone() if self.value.is_inference() else self.value._version

    def is_changed(self) -> bool:
        """Return whether the whole tensor was changed in place since the construction."""
        if self.value.is_inference():  # it has no version
            return not bool(((self.value == self._before) | (self.value != self.value)).all())
        return bool(self.value._version != self._before)

    def chain(self) -> Sequence[tuple[Any, Any]]:
        """Return the sharded tensors to write back, this one and its bases, each with its whole value."""
        return [(self.split, self.value), *(self._base.chain() if self._base is not None else ())]


def _piece(kind: Any, split: Any, value: Any) -> Any:
    """Return this rank's shard of a full tensor, split like another tensor."""
    from torch.distributed.tensor import Replicate

    mesh = split.device_mesh
    spread = kind.from_local(value.to(split.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return spread.redistribute(mesh, split.placements)._local_tensor


def _entry_of(function: Callable[[Any], Any], place: int, value: Any) -> Any:
    return function(value)[place]


def _origin(value: Any) -> Any:
    return getattr(value, "_paceline_origin", None)


def _share_memory(one: Any, other: Any) -> bool:
    """Return whether a view shares memory with its base; the same on all ranks, also on one with an empty shard."""
    if sum(place.is_shard() for place in one.placements) != sum(place.is_shard() for place in other.placements):
        return False  # torch gathered the base first
    first, second = one._local_tensor, other._local_tensor
    if not (first.numel() and second.numel()):
        return True
    return bool(first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())


def _address(value: Any) -> int:
    """Return the memory address of this rank's shard of a sharded tensor."""
    return int(value._local_tensor.untyped_storage().data_ptr())


def _goes_by_pieces(name: str, args: Any) -> bool:
    """Return whether an operator may be applied shard by shard, with the same result as on whole tensors."""
    if name == "_foreach_norm":
        return not args[1:] or args[1] in (1, 2)  # other norms raise an error for an empty shard
    if name.startswith(_LISTS):
        return name not in _REDUCED_LISTS
    return name.strip("_").removeprefix("i" if name.startswith("__i") else "") in _BY_PIECES


def _has_an_empty_shard(split: Any) -> bool:
    """Return whether any rank has no element of a sharded tensor; the same on all ranks."""
    parts = {place.dim: split.device_mesh.size(at) for at, place in enumerate(split.placements) if place.is_shard()}
    return any(split.shape[dim] <= -(-split.shape[dim] // size) * (size - 1) for dim, size in parts.items())


def _name_of(function: Any) -> str:
    name = str(getattr(function, "__name__", ""))
    owner = getattr(function, "__self__", None)
    if name == "__get__" and owner is not None:
        return str(getattr(owner, "__name__", name))
    return name


def _is_getter(function: Any, name: str) -> bool:
    return getattr(function, "__name__", "") == "__get__" and name not in _VIEWS


def _tensors(torch: Any, value: Any) -> Iterator[Any]:
    return (each for each in _leaves(value) if isinstance(each, torch.Tensor))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    else:
        yield value


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(each, function) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, function) for each in value)
    return function(value)
