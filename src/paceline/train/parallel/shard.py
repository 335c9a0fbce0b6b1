"""Sharding (FSDP2): parameters, gradients and optimizer state are split over ranks and gathered block by block.

With n ranks each keeps 1/n of parameters, gradients and optimizer state: for Adam in fp32, 16 bytes a parameter
become 16/n plus the parameters of the largest block. The cost per step is an all-gather for forward, one for
backward and a reduce-scatter of gradients. With dp > 1, parameters are split within a group and replicated over
groups (hybrid).

With a 16-bit format parameters are gathered in that format, and the inputs of torch's own layers are rounded to it;
inputs of the model, such as timesteps, stay unrounded until they reach such a layer. All ranks gather a block's
parameters together, so they must call the same blocks in the same order; a rank that calls other blocks ends the run.
Submodules, such as experts, are allowed to be used on some ranks only: their gradients on the other ranks count as 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.precision import Precision
from paceline.train.ranks.agreement import is_due, is_same, largest


def shard(model: Any, blocks: Sequence[Any], mesh: Any, precision: Precision, reshard: bool) -> Callable[[], None]:
    """Shard a model in place, block by block.

    Args:
        model: A module; tensor-parallel parameters are split once more.
        blocks: Its repeated blocks, which are gathered one at a time.
        mesh: One dimension to shard over, or two: replicas, then shards.
        precision: Parameters are gathered in its 16-bit format, if it has one; gradients are reduced in fp32 or fp64.
        reshard: Whether a block's gathered parameters are freed after forward and gathered again for backward.

    Returns:
        A function to call after the backward of each step.

    Raises:
        UsageError: A parameter is complex.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = precision.dtype()
    is_double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    reduced = torch.float64 if is_double else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced, cast_forward_inputs=False)
    if dtype is not None:
        _round_at_layers(model, dtype)
        model.forward = partial(_in_precision, model.forward, precision, mesh.device_type)
    apart = blocks_apart(model, blocks)
    _refuse_complex(model)
    scalars = {parameter for parameter in model.parameters() if not parameter.dim()}
    for block in (*apart, model):
        block.register_forward_hook(_copy_returned_parameters)
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard, ignored_params=scalars)
        keep_class_name(block)
    if scalars:
        _ScalarGradients(model, mesh)
    model.set_reduce_scatter_unused_params(True)
    for kind in {type(part) for part in (model, *apart)}:
        kind.__deepcopy__ = _refuse_copy
    if apart:
        _CallOrder(model, apart, mesh)
    unused = _Unused(model, apart, mesh)

    def after_backward() -> None:
        _refuse_gradient_hooks(model)
        unused.forget()

    return after_backward


def _copy_returned_parameters(_: Any, __: Any, output: Any) -> Any:
    """Return the output of a module with copies of the parameters in it. FSDP2 frees their memory after the call."""
    import torch
    from torch.utils import _pytree

    def is_parameter(leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and isinstance(
            leaf if leaf._base is None else leaf._base, torch.nn.Parameter
        )

    if not any(map(is_parameter, _pytree.tree_leaves(output))):
        return None
    return _pytree.tree_map(lambda leaf: leaf.clone() if is_parameter(leaf) else leaf, output)


def refuse_forward_writes(model: Any, blocks: Sequence[Any]) -> None:
    """Make forward passes that change parameters raise an error.

    Args:
        model: A module before `shard`.
        blocks: Its repeated blocks.
    """

    def refuse(module: Any, name: str) -> None:
        raise UsageError(
            f"the forward pass of {type(module).__name__} changes its parameter {name}, such as by a mask or a limit, "
            "which shard cannot store. Compute the changed weight in forward() without assigning it, change "
            f"{name} after engine.step() instead, or use dp in place of shard"
        )

    for module in (*blocks_apart(model, blocks), model):
        watch_forward_writes(module, partial(refuse, module))


def watch_forward_writes(module: Any, refuse: Callable[[str], None]) -> None:
    """Check in some calls of a module that its forward pass does not change its parameters, such as by a mask.

    The forward pass changes the gathered copies. FSDP2 frees them, and the backward pass uses the old values.

    Args:
        module: A module before `fully_shard`; the check must run before the hooks of FSDP2.
        refuse: Called with the name of a changed parameter.
    """
    calls = count(1)

    def check(module: Any, *_: Any) -> None:
        if is_due(next(calls)):
            names = [owner._param_fqn or "a parameter" for owner in owners_of(module) if _is_changed(owner)]
            if names:
                refuse(names[0])

    module.register_forward_hook(check)


def owners_of(module: Any) -> list[Any]:
    """Return what FSDP2 stores of each parameter that it gathers with a module; empty for other modules."""
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(module, FSDPModule):
        return []
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group])
    return [owner for group in groups for owner in group.fsdp_params]


def _is_changed(owner: Any) -> bool:
    """Return whether the gathered copy of a parameter differs from this rank's part of the parameter."""
    import torch

    gathered = getattr(owner, "_unsharded_param", None)
    own = owner.sharded_param._local_tensor.detach()
    if gathered is None or not own.numel() or not gathered.untyped_storage().nbytes():
        return False
    whole = getattr(gathered, "_local_tensor", gathered).detach()
    dim, mesh = owner.fsdp_placement.dim, owner.mesh_info
    piece = whole.chunk(mesh.shard_mesh_size, dim)[mesh.shard_mesh_rank]
    return not torch.equal(piece, own.to(piece.dtype))


def _refuse_gradient_hooks(model: Any) -> None:
    """Check that no sharded parameter has a gradient hook. FSDP2 does not call such hooks.

    Raises:
        UsageError: A parameter has one.
    """
    hooked = (name for name, each in model.named_parameters() if each._backward_hooks and hasattr(each, "placements"))
    name = next(hooked, None)
    if name is not None:
        raise UsageError(
            f"with shard, the gradient hook of {name} is not called; change the gradient between backward and "
            "engine.step(), put the hook on an output of a module instead, or use dp in place of shard"
        )


def _refuse_complex(model: Any) -> None:
    """Check that no parameter is complex: FSDP2 reduces gradients in fp32.

    Raises:
        UsageError: A parameter is complex.
    """
    name = next((name for name, parameter in model.named_parameters() if parameter.is_complex()), None)
    if name is not None:
        raise UsageError(
            f"{name} is a complex parameter, which FSDP2 cannot split; make torch.view_as_real(...) of it the "
            "parameter and use torch.view_as_complex in forward(), or use the layout dp"
        )


def keep_class_name(module: Any) -> None:
    """Rename the class that FSDP2 has derived from a module's class to the original name, which programs may read."""
    kind = type(module)
    own = kind.__bases__[1]  # the bases of FSDP2's class: FSDPModule, and the program's class
    kind.__name__, kind.__qualname__, kind.__module__ = own.__name__, own.__qualname__, own.__module__
    kind.__doc__ = own.__doc__


@contextmanager
def original_classes(model: Any) -> Iterator[None]:
    """Give modules inside the context the classes that they had before FSDP2 replaced them.

    An optimizer can choose groups of parameters by the class of a module, or by its name.
    """
    from torch.distributed.fsdp import FSDPModule

    replaced = [(part, type(part)) for part in model.modules() if isinstance(part, FSDPModule)]
    for part, kind in replaced:
        part.__class__ = next(base for base in kind.__bases__ if base is not FSDPModule)
    try:
        yield
    finally:
        for part, kind in replaced:
            part.__class__ = kind


def refuse_scalars(model: Any) -> None:
    """Check that no parameter of a stage of a pipeline is a scalar: a stage runs several backward passes at a time.

    Raises:
        UsageError: A parameter is a scalar.
    """
    name = next((name for name, parameter in model.named_parameters() if not parameter.dim()), None)
    if name is not None:
        raise UsageError(
            f"{name} is a scalar parameter, which FSDP2 cannot split (layouts with pp and dp or shard); "
            "give it the shape (1,), such as nn.Parameter(torch.ones(1)), or use a layout without pp"
        )


class _ScalarGradients:
    """Averages the gradients of scalar parameters over ranks after each backward pass.

    FSDP2 splits dimension 0, which a scalar does not have, so each rank keeps scalar parameters whole. The average of
    a sum of gradients, some of which are averages already, is the average of all of them.
    """

    def __init__(self, model: Any, mesh: Any) -> None:
        self._model, self._mesh = model, mesh
        self._is_queued = False  # whether the gradients are averaged at the end of the current backward pass
        model.register_forward_hook(self._watch)

    def _watch(self, _: Any, __: Any, output: Any) -> None:
        from torch.utils import _pytree

        for value in _pytree.tree_leaves(output):
            if getattr(value, "requires_grad", False):
                value.register_hook(self._queue)

    def _queue(self, _: Any) -> None:
        import torch

        if not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        import torch

        self._is_queued = False
        scalars = [each for each in self._model.parameters() if not each.dim() and each.requires_grad]
        given = [torch.zeros_like(each) if each.grad is None else each.grad for each in scalars]
        used = [torch.full_like(each, each.grad is not None) for each in scalars]
        both = torch.stack([each.to(torch.float64) for each in (*given, *used)])
        for group in groups_of(self._mesh):
            torch.distributed.all_reduce(both, group=group)
        sums, uses = (both / self._mesh.size()).chunk(2)
        for scalar, value, use in zip(scalars, sums, uses, strict=True):
            if scalar.grad is not None or bool(use):  # a scalar that no rank used has no gradient
                scalar.grad = value.to(scalar.dtype)


def _refuse_copy(model: Any, memo: Any) -> None:
    """Raise a UsageError for `copy.deepcopy` of a split model, which FSDP2 does not support."""
    del memo
    raise UsageError(
        f"copy.deepcopy() of {type(model).__name__}, whose parameters are split over ranks, is "
        "impossible; copy the model before setup(), use ema.decay (--ema) for an average of its parameters, or use dp "
        "in place of shard"
    )


def groups_of(mesh: Any) -> list[Any]:
    """Return the process groups of a mesh, one for each dimension."""
    return [mesh.get_group(axis) for axis in range(mesh.ndim)]


def _in_precision(forward: Callable[..., Any], precision: Precision, device: str, *args: Any, **kwargs: Any) -> Any:
    """Run a forward pass in autocast, also outside a micro-step: parameters are gathered in 16 bits there too."""
    import torch

    if torch.is_autocast_enabled(device):
        return forward(*args, **kwargs)
    with precision.context(device):
        return forward(*args, **kwargs)


def _round_at_layers(model: Any, dtype: Any) -> None:
    """Make torch's layers with parameters round their inputs: some accept only the format of their parameters."""
    for layer in model.modules():
        own = next(layer.parameters(recurse=False), None) is not None
        if own and next(layer.children(), None) is None and type(layer).__module__.startswith("torch.nn."):
            layer.register_forward_pre_hook(partial(_round, dtype), with_kwargs=True)


def _round(dtype: Any, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    if next(layer.parameters(recurse=False)).dtype != dtype:
        return None
    return _rounded(args, dtype), {name: _rounded(value, dtype) for name, value in kwargs.items()}


def _rounded(value: Any, dtype: Any) -> Any:
    """Return fp32 tensors, also in tuples, rounded to a 16-bit format; other values are returned unchanged."""
    import torch

    if type(value) is tuple:
        return tuple(_rounded(part, dtype) for part in value)
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


class _CallOrder:
    """Checks that all ranks call the same blocks in the same order, in each forward pass as in the first."""

    def __init__(self, model: Any, blocks: Sequence[Any], mesh: Any) -> None:
        self._groups = groups_of(mesh)
        self._name = type(model).__name__
        self._names = {id(part): name for name, part in model.named_modules()}
        self._numbers = {id(block): number for number, block in enumerate(blocks)}
        self._orders: dict[
            tuple[bool, bool], list[int]
        ] = {}  # order of block calls, by training mode and gradient mode
        self._order: list[int] | None = None
        self._calls: list[int] = []
        self._began: tuple[bool, bool] | None = None
        model.register_forward_pre_hook(self._begin, prepend=True)
        model.register_forward_hook(self._end)
        for block in blocks:
            block.register_forward_pre_hook(self._call, prepend=True)

    def _begin(self, model: Any, *_: Any) -> None:
        import torch

        self._began, self._calls = (model.training, torch.is_grad_enabled()), []
        self._order = self._orders.get(self._began)

    def _call(self, block: Any, *_: Any) -> None:
        if self._began is None:  # the block is called outside a forward pass of the model
            return
        number, at = self._numbers[id(block)], len(self._calls)
        self._calls.append(number)
        if self._order is None:
            self._agree(number)
        elif at >= len(self._order) or self._order[at] != number:
            raise self._error(f"{self._names[id(block)]} was not called there before")

    def _end(self, *_: Any) -> None:
        if self._began is None:
            return
        if self._order is None:
            self._agree(-1)
            self._orders[self._began] = self._calls
        elif len(self._calls) < len(self._order):
            raise self._error("a block that was called before was not called now")
        self._began = None

    def _agree(self, number: int) -> None:
        """Check that all ranks are at the same block."""
        if not is_same(number, self._groups):
            raise self._error("ranks call different ones")

    def _error(self, what: str) -> UsageError:
        return UsageError(
            f"shard: {self._name} does not call the same blocks on all ranks in each forward pass ({what}), as with "
            "experts or randomly dropped blocks, but all ranks gather the weights of a block together; use dp instead "
            "of shard, or put such parts into one module that is always called"
        )


def blocks_apart(model: Any, blocks: Sequence[Any]) -> list[Any]:
    """Return the blocks that FSDP2 gathers one at a time.

    Blocks that share parameters with the rest of the model are gathered with the rest. Experts are gathered with the
    rest too, because some ranks can skip them in a forward pass.
    """
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    experts = {id(part) for name, part in model.named_modules() if "expert" in name.lower()}
    return [block for block in blocks if id(block) not in experts and _is_apart(block, uses)]


def _is_apart(block: Any, uses: Counter[int]) -> bool:
    own = Counter(id(each) for _, each in block.named_parameters(remove_duplicate=False))
    return all(uses[parameter] == count for parameter, count in own.items())


def set_sync(model: Any, on: bool) -> None:
    """Set whether the next micro-step reduces gradients over ranks or only accumulates them."""
    model.set_is_last_backward(on)
    model.set_requires_gradient_sync(on)


class _Unused:
    """Removes the zero gradients that FSDP2 gives to submodules, such as experts, that no rank used in a step.

    An optimizer then skips these parameters, as it does on one process.
    """

    def __init__(self, model: Any, units: Sequence[Any], mesh: Any) -> None:
        self._groups = groups_of(mesh)
        self._parts = list(_parts_of_lists(model, {id(unit) for unit in units}))
        self._called = [0] * len(self._parts)
        for number, part in enumerate(self._parts):
            part.register_forward_pre_hook(partial(self._note, number))

    def _note(self, number: int, *_: Any) -> None:
        self._called[number] = 1

    def forget(self) -> None:
        """Set the gradients of submodules that no rank used in this step to None."""
        import torch

        called, self._called = self._called, [0] * len(self._parts)
        for number, used in enumerate(largest(called, self._groups)):
            own = [p for p in self._parts[number].parameters() if p.grad is not None]
            if used or not own:
                continue
            sizes = torch.stack(
                [p.grad.to_local().abs().sum().cpu() for p in own]
            )  # nonzero if the part was used without a call
            if not any(largest([int(sizes.sum() > 0)], self._groups)):
                for parameter in own:
                    parameter.grad = None


def _parts_of_lists(module: Any, units: set[int]) -> Iterator[Any]:
    """Yield the children with parameters of module lists and dicts, except blocks that are gathered one at a time."""
    from torch import nn

    for part in module.modules():
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            for child in part.children():
                if id(child) not in units and next(child.parameters(), None) is not None:
                    yield child
