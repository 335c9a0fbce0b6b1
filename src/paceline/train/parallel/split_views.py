"""In-place writes into a part of a split tensor (DTensor), such as `weight[::2].mul_(0.5)`, change the tensor itself.

torch gathers a split tensor before it takes a view along the split dimension. The view is then a view of the gathered
copy, and a write into it would be lost. Here such a view remembers the split tensor. A write into the view also changes
this rank's piece of the split tensor. This needs no communication, because each rank has the whole copy and writes the
same values into it. A write that cannot be copied back ends with a `UsageError`.

The patched function runs only if torch gathers a tensor. Other operators have no extra cost.

An assignment such as `weight.data = value` has the effect that it has on one process: the split tensor gets the memory
of the value, and other tensors keep the memory that it had. torch alone would lose the assignment.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Iterator
from math import prod
from typing import Any

from paceline.core.errors import UsageError
from paceline.inprocess import hooks
from paceline.train.parallel import shard
from paceline.train.parallel.dtensor_patches import in_optimizer_step

_WAY_OUT = (
    "write to the whole tensor, such as weight.copy_(torch.where(weight > 0, weight, 0)), or use dp in place of shard "
    "and tp"
)
_RELEASE_S = 1.0  # longest time for which Gloo's threads are expected to use the tensors of an exchange that has ended
_owners: dict[int, tuple[Any, Any]] = {}  # references to a module and its FSDPParam, by the id of the parameter


def patch() -> None:
    """Patch the function with which torch gathers the operands of an operator of split tensors."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dispatch import OpDispatcher

    name = "redistribute_local_args"
    original, is_static = getattr(OpDispatcher, name), isinstance(vars(OpDispatcher)[name], staticmethod)

    @functools.wraps(original)
    def redistribute(*given: Any, **named: Any) -> Any:
        operands, schema = given[-3:-1]
        before = operands.local_args
        found = original(*given, **named)
        if schema.op.is_view and type(operands.local_args[0]) is _tensor() and operands.local_args[0] is not before[0]:
            source = _Source(before[0], operands.flat_args_schema[0], operands.local_args[0], schema.args_schema[0])
            operands.local_args = (_part(operands.local_args[0], source), *operands.local_args[1:])
        return found

    hooks.install(OpDispatcher, name, staticmethod(redistribute) if is_static else redistribute)
    hooks.install(DTensor, "__setitem__", _set_item)
    hooks.install(DTensor, "data", property(_tensor().data.__get__, _set_data))


def find_owners(model: Any) -> None:
    """Find what FSDP2 stores of each parameter of a model, because an assignment must change it too."""
    for module in model.modules():
        for owner in shard.owners_of(module):
            _owners[id(owner.sharded_param)] = weakref.ref(module), weakref.ref(owner)


def _tensor() -> Any:
    import torch

    return torch.Tensor


def _set_item(tensor: Any, index: Any, value: Any) -> None:
    """Assign to a part of a split tensor; torch cannot assign a number to one element or row of it.

    Raises:
        UsageError: torch cannot apply the index, such as a mask, or assign the value, such as a whole tensor.
    """
    places = index if isinstance(index, tuple) else (index,)
    try:
        if isinstance(value, int | float) and all(isinstance(place, int | slice | None) for place in places):
            tensor[index].fill_(value)
        else:
            _tensor().__setitem__(tensor, index, value)
    except (RuntimeError, IndexError) as error:
        if isinstance(error, RuntimeError) and in_optimizer_step():
            raise
        raise _error(
            f"an assignment to a part of a tensor that is split over ranks failed ({str(error).splitlines()[0]})"
        ) from error


def _set_data(tensor: Any, value: Any) -> None:
    """Assign to `data` of a split tensor: it then shares the memory of the value. Copies of `data` keep the old memory.

    If the value is split in another way, or FSDP2 needs a longer piece, the value is copied, and both tensors use the
    copy.

    Raises:
        UsageError: The value is a whole tensor or has another shape, dtype or device, or a copy is needed, while other
            tensors use the memory of the value.
    """
    _check_value(tensor, value)
    module, owner = _owner_of(tensor)
    own, local = tensor._local_tensor, value._local_tensor
    same_split = value.placements == tensor.placements and local.stride() == own.stride()
    if same_split and local.data_ptr() == own.data_ptr() != 0:
        return
    if _is_usable(tensor, value, owner):
        piece, memory = local.detach(), local.detach()
    else:
        _check_unshared(value)
        piece, memory = _copied(tensor, value, owner)
    tensor._local_tensor = piece
    if owner is not None:
        owner._sharded_param_data = memory.view(-1)
        module.reshard()  # or FSDP2 would use the values that it gathered before
    if memory.untyped_storage().data_ptr() != local.untyped_storage().data_ptr():
        value._local_tensor, value._spec = piece.detach(), tensor._spec


def _check_value(tensor: Any, value: Any) -> None:
    """Check that a value can be assigned to `data` of a split tensor.

    Raises:
        UsageError: The value is not split, or has another shape, dtype, device or mesh.
    """
    from torch.distributed.tensor import DTensor

    if not isinstance(value, DTensor):
        raise UsageError(
            "a whole tensor was assigned to .data of a tensor that is split over ranks; assign torch.distributed.tensor"
            ".distribute_tensor(value, parameter.device_mesh, parameter.placements), or use dp in place of shard and tp"
        )
    for name in ("shape", "dtype", "device", "device_mesh"):
        own, new = getattr(tensor, name), getattr(value, name)
        if own != new:
            raise UsageError(
                f"a tensor with {name} {_text(new)} was assigned to .data of a tensor with {name} {_text(own)}, which "
                f"is split over ranks; assign a tensor of the same {name}, or use dp in place of shard and tp"
            )


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _owner_of(tensor: Any) -> tuple[Any, Any]:
    """Return the module whose parameters FSDP2 gathers with a tensor, and what it stores of it; or (None, None)."""
    module, owner = (reference() for reference in _owners.get(id(tensor), (lambda: None, lambda: None)))
    return (module, owner) if owner is not None and owner.sharded_param is tensor else (None, None)


def _is_usable(tensor: Any, value: Any, owner: Any) -> bool:
    """Return whether the pieces of a value can become the memory of a split tensor; the same on all ranks."""
    own, local = tensor._local_tensor, value._local_tensor
    if value.placements != tensor.placements or type(local) is not _tensor() or local.stride() != own.stride():
        return False
    if owner is None:
        return True
    mesh = tensor.device_mesh
    pieces = prod(mesh.size(axis) for axis, each in enumerate(tensor.placements) if not each.is_replicate())
    return bool(local.is_contiguous() and owner.padded_sharded_param_size.numel() * pieces == tensor.numel())


def _check_unshared(value: Any) -> None:
    """Check that no other tensor uses the memory of a value, because it would not see later changes.

    Gloo's threads use the tensors of an exchange until shortly after its end.

    Raises:
        UsageError: The value is `other.data`, for example, or a part of another tensor.
    """
    import torch

    def uses(tensor: Any) -> int:
        return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))

    local = getattr(value._local_tensor, "plain", value._local_tensor)
    until = time.monotonic() + _RELEASE_S
    while uses(local) > uses(torch.empty(1)) and time.monotonic() < until:
        time.sleep(0.001)
    if uses(local) > uses(torch.empty(1)):
        raise UsageError(
            "a tensor that is split over ranks cannot share memory with another tensor, as parameter.data = other.data "
            "says on one process; copy the values with parameter.data.copy_(other.data), or use dp in place of shard "
            "and tp"
        )


def _copied(tensor: Any, value: Any, owner: Any) -> tuple[Any, Any]:
    """Return a copy of this rank's piece of a value, split like a tensor, and the memory with the room FSDP2 needs."""
    import torch

    with torch.no_grad():
        local = value.detach().redistribute(placements=tensor.placements)._local_tensor
        if owner is None:
            piece = torch.empty_like(tensor._local_tensor).copy_(local)
            return piece, piece
        memory = torch.zeros(owner.padded_sharded_param_size, dtype=value.dtype, device=value.device)
        dim = owner.fsdp_placement.dim
        piece = memory.narrow(dim, 0, local.size(dim) if local.numel() else 0)
        return piece.copy_(local), memory


@functools.cache
def _kind() -> Any:
    import torch

    class Part(torch.Tensor):
        plain: Any
        source: _Source
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            return _apply(function, args, kwargs or {})

    return Part


def _part(plain: Any, source: _Source) -> Any:
    """Return a local tensor that shares the memory of a view of a gathered copy, and remembers what was gathered."""
    import torch

    found = torch.Tensor._make_subclass(_kind(), plain)
    found.plain, found.source = plain, source
    return found


def _apply(function: Any, args: Any, kwargs: Any) -> Any:
    """Apply an operator to plain tensors, and copy what it writes back to the split tensors."""
    from torch.utils import _pytree

    written = list(_written(function, args, kwargs))
    for part in written:
        part.source.check(function, part.plain)
    plain_args, plain_kwargs = _pytree.tree_map_only(_kind(), lambda part: part.plain, (args, kwargs))
    found = function(*plain_args, **plain_kwargs)
    for part in written:
        part.source.write(part.plain)
    if written:
        return next((part for part in written if part.plain is found), found)
    if not function.is_view:
        return found
    return _pytree.tree_map_only(_tensor(), functools.partial(_part, source=args[0].source), found)


def _written(function: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the views of gathered copies that an operator writes to."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for each in value if isinstance(value, list | tuple) else (value,):
                if isinstance(each, _kind()):
                    yield each


class _Source:
    """A split tensor that torch has gathered to take a view of it."""

    def __init__(self, local: Any, spec: Any, whole: Any, gathered: Any) -> None:
        """Store this rank's piece, and the gathered copy.

        Args:
            local: This rank's piece of the split tensor.
            spec: How the tensor is split.
            whole: The gathered copy.
            gathered: How the gathered copy is split; only some dimensions of the mesh may be gathered.
        """
        self._local, self._spec, self._whole, self._gathered = local, spec, whole, gathered

    def check(self, function: Any, view: Any) -> None:
        """Check that a write into a view can be copied back.

        Raises:
            UsageError: Ranks would write different random numbers, the split tensor is not split by plain pieces, or it
                was changed after the view was taken.
        """
        import torch

        name = function.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise _error(f"{name}() on a part of a split tensor would draw other random numbers on each rank")
        if not self._is_cut() or view.dtype != self._whole.dtype:
            raise _error(f"{name}() on a part of a tensor that is split as {self._spec.placements} would be lost")
        own, mask = self._piece(self._whole), self._mask(view)
        same = (own == self._local) | (own.isnan() & self._local.isnan())
        if not bool((same | ~mask).all()):
            raise _error(f"{name}() on a part of a split tensor, which was changed after the part was taken")

    def _is_cut(self) -> bool:
        from torch.distributed.tensor import Replicate, Shard

        pairs = zip(self._spec.placements, self._gathered.placements, strict=True)
        return all(own == now or type(own) is Shard and type(now) is Replicate for own, now in pairs)

    def write(self, view: Any) -> None:
        """Copy the elements of a view into this rank's piece of the split tensor."""
        import torch

        self._local.copy_(torch.where(self._mask(view), self._piece(self._whole), self._local))

    def _mask(self, view: Any) -> Any:
        """Return which elements of this rank's piece a view has."""
        import torch

        whole = self._whole
        count = whole.untyped_storage().nbytes() // whole.element_size()
        flat = torch.zeros(count, dtype=torch.bool, device=whole.device)
        flat.as_strided(view.size(), view.stride(), view.storage_offset()).fill_(True)
        return self._piece(flat.as_strided(whole.size(), whole.stride(), whole.storage_offset()))

    def _piece(self, whole: Any) -> Any:
        """Return this rank's piece of a tensor that is split like the gathered copy."""
        from torch.distributed.tensor import DTensor

        spec = self._spec
        shape = {"shape": spec.shape, "stride": spec.stride}
        copy = DTensor.from_local(whole, spec.mesh, self._gathered.placements, run_check=False, **shape)
        return copy.redistribute(placements=spec.placements)._local_tensor


def _error(what: str) -> UsageError:
    return UsageError(f"{what}; {_WAY_OUT}")
