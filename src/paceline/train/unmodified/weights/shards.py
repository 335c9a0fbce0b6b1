"""Sharding of a whole model that already has an optimizer, with FSDP2, at the model's first call in training.

FSDP2 replaces the whole weights by sharded ones, and the optimizers get the sharded weights and their state. Saved
states hold whole tensors, under the names that the program knows, and loaded states are sharded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from paceline.inprocess import hooks
from paceline.train.activations import blocks_of
from paceline.train.parallel.shard import blocks_apart, keep_class_name, watch_forward_writes
from paceline.train.unmodified.state import Spread, check_hooks
from paceline.train.unmodified.weights import aliases, copies, followers, operators
from paceline.train.unmodified.weights.operators import whole

_optimizers: WeakSet[Any] = WeakSet()
_models: WeakSet[Any] = WeakSet()
_meshes: list[Any] = []
_parts: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()  # of sharded models -> weight names
_watch: list[Callable[[Any, int], None]] = []  # called with each of FSDP2's parameter groups
_places = [0]  # the count of numbered sharded weights; numbers are equal on all ranks and not reused
_used: dict[int, bool] = {}  # in this pass: number of a weight -> whether this rank has a gradient for it
_without: list[tuple[int, Any]] = []  # numbers and weights without a gradient before this pass
_reducing: list[Any] = []  # parameter groups whose gradients FSDP2 exchanges at the moment
_by_program: set[int] = set()  # ids of weights that got a gradient outside of the model in this pass


def check_shared(spread: Spread, module: Any) -> None:
    """Refuse a model that shares a weight with another model, which is split already."""
    name = next((name for name, weight in module.named_parameters() if followers.is_follower(weight)), None)
    if name is not None:
        spread.refuse(
            f"{type(module).__name__} shares the weight {name} with a model that is called by itself, whose weights "
            "are split; put both into one module, or use dp in place of shard"
        )


def patch(spread: Spread, watch: Callable[[Any, int], None]) -> None:
    """Patch optimizers, gradient scalers, operators and copies, if the layout shards models.

    Args:
        spread: The state of this rank.
        watch: Is called with each of FSDP2's parameter groups and the number of its first weight.
    """
    _watch[:] = [watch]
    if spread.layout.shard == 1:
        return
    optimizer = spread.torch.optim.Optimizer
    original = optimizer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _optimizers.add(self)
        _take_over(self)
        _keep_whole_outside(self)

    hooks.install(optimizer, "__init__", __init__)
    _agree_on_overflow(spread)
    operators.patch(spread)
    copies.patch(spread)
    followers.patch()


def is_split(module: Any) -> bool:
    """Return whether a model was sharded as a whole; False for modules inside a sharded model (see `is_part`)."""
    return module in _models


def any_split() -> bool:
    """Return whether any model is sharded."""
    return bool(_models)


def is_part(module: Any) -> bool:
    """Return whether a module is, or is inside, a sharded model."""
    return module in _parts


def check_parts(spread: Spread, module: Any) -> None:
    """End the program if a sharded model has gained or lost weights, or has hooks on its weights."""
    for weight in module.parameters():
        check_hooks(spread, weight)
    for part in module.modules():
        own = _own_names(part)
        if own != _parts.get(part, frozenset()):
            names = ", ".join(sorted(own))
            has = f"other weights ({names})" if part in _parts else f"a {type(part).__name__}"
            spread.refuse(
                f"{_name_of(module)} has got {has} after its first call in training, when "
                "its weights were split; make the whole model before, or use dp in place of shard"
            )


def check_replaced(spread: Spread, module: Any) -> None:
    """End the program if it has replaced a weight of a sharded model, because FSDP2 would ignore the new weight."""
    for group in _groups(module):
        for each in group.fsdp_params:
            place = each._module_info
            found = place.module._parameters.get(place.param_name)
            if found is not None and found is not each.sharded_param and found is not _whole_of(each):
                spread.refuse(
                    f"{place.param_name} of a {_name_of(place.module)} in {_name_of(module)} was replaced by another "
                    "weight after the first call in training, when the weights were split; copy the new values "
                    "into it (copy_()), or use dp in place of shard"
                )


def _whole_of(weight: Any) -> Any:
    """Return the gathered weight that FSDP2 puts into the model for a forward or backward pass, or None."""
    return getattr(weight, "_unsharded_param", None)


def _name_of(module: Any) -> str:
    return type(module).__name__


def _groups(module: Any) -> Iterator[Any]:
    """Yield FSDP2's parameter groups of a sharded model."""
    for part in module.modules():
        yield from part._get_fsdp_state()._fsdp_param_groups if hasattr(part, "_get_fsdp_state") else ()


def _own_names(part: Any) -> frozenset[str]:
    return frozenset(name for name, weight in part._parameters.items() if weight is not None)


def split(spread: Spread, exchange: Any, module: Any, *, trains: bool) -> None:
    """Shard a model at its first call with gradients, and give its optimizers the sharded weights.

    In evaluation mode, only a model whose weights are in an optimizer is sharded.

    Args:
        spread: The state of this rank.
        exchange: The exchanges with the other ranks.
        module: The model.
        trains: Whether the model is in training mode.
    """
    if spread.layout.shard == 1 or module in _models:
        return
    trained = {id(weight) for weight in module.parameters() if weight.requires_grad}
    having = [o for o in _optimizers if any(id(w) in trained for group in o.param_groups for w in group["params"])]
    if not trained or not having and not trains:
        return
    _models.add(module)
    _check_optimizers(spread, module, having)
    for weight in module.parameters():
        check_hooks(spread, weight)
    before = dict(module.named_parameters(remove_duplicate=False))
    trained_names = {name for name, weight in module.named_parameters() if weight.requires_grad}
    rebind = aliases.find(spread, before.items())
    blocks = blocks_apart(module, blocks_of(module))
    try:
        _fully_shard(
            spread, getattr(module, "_orig_mod", module), blocks
        )  # the module inside a wrapper of torch.compile
    except Exception as error:
        spread.refuse(
            f"FSDP2 cannot split {type(module).__name__} ({type(error).__name__}: {error}); use dp in place of shard"
        )
    _parts.update((part, _own_names(part)) for part in module.modules())
    for kind in {type(part) for part in module.modules() if hasattr(part, "_get_fsdp_state")}:
        copies.patch_class(spread, kind)
    _note_used(module)
    for number, block in enumerate(blocks):
        check = functools.partial(_check_block, spread, exchange, number)
        block.register_forward_pre_hook(check, prepend=True)  # before FSDP2 gathers its weights
        block.register_forward_hook(
            functools.partial(_without_views, spread.torch), prepend=True
        )  # before FSDP2's hook
    _make_followers(spread, module, before, trained_names)
    rebind(dict(module.named_parameters(remove_duplicate=False)))
    for optimizer in _optimizers:
        _take_over(optimizer)
    for each in module.modules():
        each.register_state_dict_post_hook(_saved_whole)
        each.register_load_state_dict_pre_hook(_loaded_split)


def _make_followers(spread: Spread, module: Any, before: dict[str, Any], trained_names: set[str]) -> None:
    """Make the original weights of a model followers of its sharded weights.

    Args:
        spread: The state of this rank.
        module: The sharded model.
        before: Its original weights, by name.
        trained_names: The names of the weights that are trained.
    """
    for name, weight in module.named_parameters(remove_duplicate=False):
        if followers.is_follower(before[name]):
            continue  # a weight with several names
        if name in trained_names:
            weight.register_post_accumulate_grad_hook(_note_own_gradient)
            before[name].register_post_accumulate_grad_hook(functools.partial(_pass_on, spread.torch))
        followers.make_follower(spread.torch, before[name], weight)


def _note_own_gradient(weight: Any) -> None:
    """Note that the program itself computed a gradient of a sharded weight, and shard it like the weight."""
    if _reducing:
        return  # FSDP2 has set this gradient
    if weight.grad.placements != weight.placements:
        weight.grad = weight.grad.redistribute(placements=weight.placements)
    _by_program.add(id(weight))


def _pass_on(torch: Any, before: Any) -> None:
    """Add to a sharded weight the gradient of its follower."""
    weight = followers.sharded_weight(before)
    with torch._C.DisableTorchFunctionSubclass():
        found, before.grad = before.grad, None
    gradient = _as(weight, found)
    _by_program.add(id(weight))
    weight.grad = gradient if weight.grad is None else weight.grad + gradient


def _check_optimizers(spread: Spread, module: Any, having: Sequence[Any]) -> None:
    """End the program if no optimizer has the model's weights, or if one is LBFGS."""
    if not having:
        spread.refuse(
            f"no optimizer has the weights of {type(module).__name__} at its first call in training; make it before, "
            "call the model under torch.no_grad() if it is not trained, or use dp in place of shard if the program "
            "updates the weights by hand"
        )
    if any(type(optimizer).__name__ == "LBFGS" for optimizer in having):
        spread.refuse("LBFGS looks at all weights as one vector, which is split here; use dp in place of shard")


def _fully_shard(spread: Spread, module: Any, blocks: Sequence[Any]) -> None:
    from torch.distributed.fsdp import fully_shard

    torch, layout = spread.torch, spread.layout
    if any(weight.dim() > 1 and not weight.is_contiguous() for weight in module.parameters()):
        spread.refuse(
            f"FSDP2 cannot split weights of {_name_of(module)} that are not contiguous, as in channels_last; leave "
            "memory_format out, or use dp in place of shard"
        )
    if not _meshes:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        sizes, names = ((layout.dp, layout.shard), ("dp", "shard")) if layout.dp > 1 else ((layout.shard,), ("shard",))
        _meshes.append(torch.distributed.init_device_mesh(device, sizes, mesh_dim_names=names))
    for part in (*blocks, module):
        watch_forward_writes(part, functools.partial(_refuse_forward_write, spread, part))
    for block in blocks:
        fully_shard(block, mesh=_meshes[0])
    # By default the root's weights stay whole after a forward pass, and the program would see whole weights.
    fully_shard(module, mesh=_meshes[0], reshard_after_forward=True)
    for part in (*blocks, module):
        keep_class_name(part)


def _refuse_forward_write(spread: Spread, module: Any, name: str) -> None:
    """End the program because a forward pass changes a weight."""
    spread.refuse(
        f"the forward pass of {_name_of(module)} changes its weight {name}, such as by a mask or a limit, which FSDP2 "
        "cannot store; use dp in place of shard"
    )


def _check_block(spread: Spread, exchange: Any, number: int, block: Any, given: Any) -> None:
    """End the program if the ranks are about to gather the weights of different blocks in one exchange."""
    if spread.has_part and not exchange.agree([number]):
        spread.refuse(
            f"ranks call other blocks ({_name_of(block)}) for their rows, such as experts or "
            "blocks dropped by chance, whose weights they would have to gather together; use dp in place of shard"
        )


def _without_views(torch: Any, block: Any, given: Any, found: Any) -> Any:
    """Return the output of a block, with copies in place of views.

    FSDP2 gathers the weights of a block again in a hook on the gradient of its output. If the model changes a view in
    place (`out += rows`), torch runs this hook too late.
    """

    def plain(value: Any) -> Any:
        is_view = isinstance(value, torch.Tensor) and value.requires_grad and value._is_view()
        return value.clone() if is_view else value

    return torch.utils._pytree.tree_map(plain, found)


def _note_used(module: Any) -> None:
    """Make all ranks exchange the gradients of all weights, also unused ones, and note which weights were used."""
    module.set_reduce_scatter_unused_params(True)
    for group in _groups(module):
        _note_used_of(group, _places[0])
        _watch[0](group, _places[0])
        _places[0] += len(group.fsdp_params)


def _note_used_of(group: Any, first: int) -> None:
    original = group.post_backward

    @functools.wraps(original)
    def post_backward(*unused: Any) -> Any:
        for place, weight in enumerate(group.fsdp_params, first):
            if place not in _used and weight.sharded_param.grad is None:
                _without.append((place, weight.sharded_param))
            kept = _whole_of(weight)
            has = kept is not None and (kept.grad is not None or weight.unsharded_accumulated_grad is not None)
            _used[place] = has or _used.get(place, False)
        _reducing.append(group)
        try:
            return original(*unused)
        finally:
            _reducing.pop()

    group.post_backward = post_backward


def drop_unused(exchange: Any) -> None:
    """After a backward pass, remove the gradients of weights that no rank has used, as in one process.

    The same exchange also compares the ranks' digests.
    """
    places = _places[0]
    if not places:
        return
    account, ranks = [*exchange.account.digests(), int(exchange.account.asks)], exchange.spread.ranks
    used = exchange.torch.zeros(places + ranks * len(account), dtype=exchange.torch.int64)
    for place, has in _used.items():
        used[place] = int(has)
    used[places:].view(ranks, -1)[exchange.spread.rank] = exchange.torch.tensor(account)
    exchange.sum_(used)
    exchange.account.check_all(used[places:].view(ranks, -1).tolist())
    for place, weight in _without:
        if not used[place] and id(weight) not in _by_program:
            weight.grad = None
    forget_used()


def forget_used() -> None:
    """Forget which weights a backward pass has used."""
    _used.clear()
    _without.clear()
    _by_program.clear()


def _take_over(optimizer: Any) -> None:
    """Replace the whole weights of an optimizer by the sharded weights, and shard its state."""
    for group in optimizer.param_groups:
        for place, weight in enumerate(group["params"]):
            split_weight = followers.sharded_weight(weight)
            if split_weight is weight:
                continue
            group["params"][place] = split_weight
            kept = optimizer.state.pop(weight, None)
            if kept is not None:
                optimizer.state[split_weight] = _split_like(split_weight, kept)


def _split_like(weight: Any, kept: dict[str, Any]) -> dict[str, Any]:
    return {name: _as(weight, value) if hasattr(value, "shape") else value for name, value in kept.items()}


def _as(weight: Any, value: Any) -> Any:
    """Return a whole tensor sharded like a weight of the same shape; return other values unchanged."""
    from torch.distributed.tensor import distribute_tensor

    if _is_split(weight):
        value = aliases.weight_of(value)
    if _is_split(value) or not _is_split(weight) or value.shape != weight.shape or not value.dim():
        return value
    return distribute_tensor(value.detach().to(weight.device), weight.device_mesh, weight.placements)


def _is_split(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def _saved_whole(module: Any, state: Any, prefix: str, metadata: Any) -> None:
    for name, weight in module._parameters.items():
        value = state.get(f"{prefix}{name}")
        if _is_split(value) and _is_split(weight):
            state[f"{prefix}{name}"] = aliases.aliased(whole(value), weight)


def _loaded_split(module: Any, state: Any, prefix: str, *others: Any) -> None:
    for name, weight in module._parameters.items():
        value = state.get(f"{prefix}{name}")
        if weight is not None and value is not None:
            state[f"{prefix}{name}"] = _as(weight, value)


def _keep_whole_outside(optimizer: Any) -> None:
    """Register hooks on an optimizer, so that its saved state is whole and a loaded state is sharded.

    At most one tensor at a time is whole on the device: saved tensors are in CPU memory, as the state of all weights
    may not fit the device, and loaded tensors are sharded before torch moves them to the device.
    """

    def saved(value: Any) -> Any:
        return aliases.aliased(whole(value).cpu(), value) if _is_split(value) else value

    def save(own: Any, found: Any) -> Any:
        kept = {
            place: {name: saved(value) for name, value in state.items()} if isinstance(state, dict) else state
            for place, state in found["state"].items()
        }
        return {**found, "state": kept}

    def load(own: Any, given: Any) -> Any:
        weights = [weight for group in own.param_groups for weight in group["params"]]
        places = [place for group in given["param_groups"] for place in group["params"]]
        state = dict(given["state"])
        for place, weight in zip(places, weights, strict=False):  # torch reports other numbers of weights
            if isinstance(state.get(place), dict):
                state[place] = _split_like(weight, state[place])
        return {**given, "state": state}

    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_pre_hook(load)


def _agree_on_overflow(spread: Spread) -> None:
    """Patch the gradient scaler: all ranks skip a step if gradients are not finite on any of them."""
    torch, scaler = spread.torch, spread.torch.amp.GradScaler
    original = scaler._unscale_grads_

    @functools.wraps(original)
    def unscale(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        for each in found.values():
            torch.distributed.all_reduce(each, torch.distributed.ReduceOp.MAX)
        return found

    hooks.install(scaler, "_unscale_grads_", unscale)
