"""Applies all axes of a layout to one model, in this order: pp, tp or cp, activation checkpointing, then shard or dp.

The model is first cut into pipeline stages, then matrices are split within each stage, then activation
checkpointing is applied. Finally DDP replicates the model if the layout has dp only; otherwise FSDP2 shards it,
or averages the gradients of parameters that tp has already split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import Layout
from paceline.train import batch_norm
from paceline.train.activations import blocks_of
from paceline.train.parallel import cp, cp_batches, cp_check, dp, dtensor_patches, layers, pp, shard, tp, whole_tensors
from paceline.train.parallel.balance import measured
from paceline.train.parallel.tied_parameters import Copies
from paceline.train.ranks import agreement
from paceline.train.ranks.world import World, mesh_axes
from paceline.train.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Arranged:
    """The model as one rank holds it."""

    module: Any  # the module to call; with pp the stages of this rank, which cannot be called
    held: Any  # the module with this rank's parameters, under the names of the original model
    set_sync: Callable[[bool], None]  # sets whether the next micro-step reduces gradients
    stages: pp.Stages | None
    check_used: Callable[[], None]  # called before the optimizer step: gradients that no rank computed become None
    check_reduced: Callable[[], None] = lambda: None  # called after backward: checks that all gradients were averaged
    averages_later: bool = False  # whether only a backward through `module` averages gradients, as with DDP
    whole: Any = None  # a copy of the model from before it was split; None without a comparison

    def counted(self) -> Iterator[Any]:
        """Yield the gradients of this rank; that of a tied parameter only on the first rank that has it."""
        repeated = set() if self.stages is None else self.stages.copies.repeated()
        for name, parameter in self.held.named_parameters():
            if parameter.grad is not None and name not in repeated:
                yield parameter.grad


def arrange(
    model: Any, world: World, recipe: Recipe, sample: Any = None, copied: Callable[[Any], Any] | None = None
) -> Arranged:
    """Distribute a model over the ranks.

    Args:
        model: The whole model, made by each rank; the values of rank 0 count. On the meta device it gets memory, and no
            values, when it is split.
        world: The ranks.
        recipe: Of the run.
        sample: What the model may be called with, for stages of measured cost.
        copied: Returns a copy of the model before it is split, or None.

    Raises:
        UsageError: The ranks created different models, or the layout does not fit the model.
    """
    blocks = _prepared(model, world, recipe)
    cp.forget()
    layout, whole, notes = world.layout, copied(model) if copied else None, _attributes(model)
    if {"shard", "pp"} & set(mesh_axes(layout)):
        for parameter in model.parameters():  # neither FSDP2 nor stages of a pipeline take channels-last
            parameter.data = parameter.data.contiguous()
    plan = tp.plan_of(model) if layout.tp > 1 else {}
    if plan:
        tp.check_heads(model, layout.tp)
    if layout.pp == 1:
        module, set_sync, check_used = _spread(model, blocks, plan, world, recipe)
        _put_attributes(model, notes)
        if {"shard", "tp"} & set(layout.in_use):
            whole_tensors.split_when_loaded(model, ())
            whole_tensors.refuse_to_save_parts(model, layout)
        if layout.cp > 1:
            cp_check.check_first(module, model, world)
            if recipe.checks.first_step:
                cp_check.check_losses(module, world)
                cp_batches.patch(layout)
        return Arranged(
            module=module,
            held=model,
            set_sync=set_sync,
            stages=None,
            check_used=check_used,
            check_reduced=dp.check_of_used(model, recipe.ddp) if module is not model else lambda: None,
            averages_later=module is not model,
            whole=whole,
        )
    found = _arrange_stages(model, blocks, plan, (world, recipe), _costs(model, world, recipe, sample))
    _put_attributes(found.held, notes)
    return replace(found, whole=whole)


def _arrange_stages(
    model: Any, blocks: Sequence[Any], plan: Any, run: tuple[World, Recipe], costs: Sequence[float] | None
) -> Arranged:
    """Cut a model into pipeline stages, and apply the other axes to the stages of this rank.

    Args:
        model: The whole model.
        blocks: Its repeated blocks.
        plan: The plan of tp.
        run: The ranks and the recipe.
        costs: The costs of the layers; None to count them.
    """
    world, recipe = run
    own, tied = pp.stages_of(model, world.position("pp"), world.layout.pp, recipe.pipeline, costs)
    checks = []
    for _, stage in own:
        inside = set(stage.modules())
        checks.append(_spread(stage, [block for block in blocks if block in inside], plan, world, recipe)[2])
    held = pp.joined([stage for _, stage in own])
    dtensor_patches.refuse_norms_of_stages(held)
    dtensor_patches.refuse_draws_of_stages(held, world.layout)
    held.forward = partial(_refuse_call, world.layout)
    whole_tensors.split_when_loaded(held, model.state_dict())
    whole_tensors.refuse_to_save_parts(held, world.layout)
    copies = Copies(tied, held, world)
    stages = pp.Stages(own, world.group("pp"), world.device, (recipe.pipeline, recipe.micro_batches), copies)
    return Arranged(module=held, held=held, set_sync=lambda on: None, stages=stages, check_used=partial(_each, checks))


def _prepared(model: Any, world: World, recipe: Recipe) -> list[Any]:
    """Check a model, move it to its device with the values of rank 0, and return its repeated blocks."""
    _check(model, world)
    _check_hooks(model, world.layout)
    _check_embeddings(model, world.layout)
    blocks = blocks_of(model)
    recipe.memory.check(model, blocks)
    recipe.precision.convert(model)
    if is_on_meta(model):
        return blocks
    if recipe.layers.devices:
        layers.spread(model, layers.places(recipe.layers.devices))
    else:
        model.to(world.device)
    if world.mesh is not None:
        _same_values(model)
    return blocks


def is_on_meta(model: Any) -> bool:
    """Return whether a model has parameters without values."""
    return any(parameter.is_meta for parameter in model.parameters())


def _refuse_call(layout: Layout, *_: Any, **__: Any) -> None:
    """Raise a UsageError: with pp a rank holds only some of the layers, so the model cannot be called."""
    raise UsageError(
        f"layout {layout}: each rank has only some of the layers, so the model cannot be called; to train, use "
        "engine.train_batch(inputs, target); to evaluate, use engine.evaluate(loader)"
    )


def _attributes(model: Any) -> dict[str, dict[str, Any]]:
    """Return the attributes that the user set on parameters, such as `no_weight_decay`, by parameter name."""
    return {name: dict(vars(each)) for name, each in model.named_parameters(remove_duplicate=False) if vars(each)}


def _put_attributes(held: Any, notes: Mapping[str, Mapping[str, Any]]) -> None:
    """Copy saved attributes to the parameters of this rank that lack them, because splitting creates new parameters."""
    for name, parameter in held.named_parameters(remove_duplicate=False):
        for key, value in notes.get(name, {}).items():
            if not hasattr(parameter, key):
                setattr(parameter, key, value)


def _check_hooks(model: Any, layout: Layout) -> None:
    """Check that no parameter that will be replaced by a split one has a gradient hook of the user.

    Raises:
        UsageError: A gradient hook would be lost.
    """
    if not {"shard", "tp"} & set(mesh_axes(layout)):
        return
    for name, each in model.named_parameters():
        if each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None):
            raise UsageError(
                f"layout {layout}: {name} has a gradient hook, which would be lost when the parameter is split; "
                "put the hook on an output of a module instead, or use a layout with dp only"
            )


def _check_embeddings(model: Any, layout: Layout) -> None:
    """Check the embeddings of a model, if ranks see different samples or positions.

    Raises:
        UsageError: An embedding has sparse gradients, or `max_norm`, with which its forward pass changes the rows that
            the samples of a rank use.
    """
    if layout.samples == 1 and layout.cp == 1:
        return
    import torch

    embeddings = [(n, e) for n, e in model.named_modules() if isinstance(e, torch.nn.Embedding | torch.nn.EmbeddingBag)]
    sparse = next((name for name, each in embeddings if each.sparse), None)
    if sparse is not None:
        raise UsageError(
            f"layout {layout}: {sparse} has sparse=True, and sparse gradients cannot be reduced over ranks; leave "
            "sparse=True out"
        )
    name = next((name for name, each in embeddings if each.max_norm is not None), None)
    if name is not None:
        raise UsageError(
            f"layout {layout}: {name} has max_norm, with which the forward pass changes the weights that a rank's own "
            "samples use, so ranks would train different weights; limit the norms of all rows after step(), or "
            "use tp or pp"
        )


def _each(checks: Sequence[Callable[[], None]]) -> None:
    for check in checks:
        check()


def _costs(model: Any, world: World, recipe: Recipe, sample: Any) -> list[float] | None:
    """Return the costs of the layers measured on rank 0; None if layers are counted."""
    import torch

    if recipe.pipeline.balance != "measured":
        return None
    if not isinstance(model, torch.nn.Sequential):
        raise UsageError(
            f"pipeline.balance = 'measured' is for an nn.Sequential, and the model is a {type(model).__name__}; "
            "set 'counted'"
        )
    if sample is None:
        raise UsageError(
            "pipeline.balance = 'measured' needs a batch to measure the layers: call setup(..., sample=inputs), "
            "or set 'counted'"
        )
    part = sample[: max(1, len(sample) // recipe.micro_batches)].to(world.device)
    found = [measured(list(model._modules.values()), part) if world.rank == 0 else None]
    torch.distributed.broadcast_object_list(found, 0)
    return found[0]


def _spread(
    model: Any, blocks: Sequence[Any], plan: Mapping[str, str], world: World, recipe: Recipe
) -> tuple[Any, Callable[[bool], None], Callable[[], None]]:
    """Apply all axes except pp to a model or to one pipeline stage.

    Returns:
        The module to call, the function that sets whether a micro-step reduces gradients, and the function to call
        before the optimizer step.
    """
    layout = world.layout
    if plan:
        tp.split(model, plan, world.submesh("tp"))
    if layout.cp > 1:
        cp.split(model, blocks, world.submesh("cp"))
    if world.data_group is not None and not recipe.apart:
        batch_norm.share(model, world.data_group)
    recipe.memory.apply(blocks)
    recipe.compute.apply(model, blocks)
    if {"tp", "shard"} & set(mesh_axes(layout)):
        dtensor_patches.refuse_second_derivatives(model, layout)
    if "shard" in mesh_axes(layout):
        if layout.pp > 1:
            shard.refuse_scalars(model)
        shard.refuse_forward_writes(model, blocks)
        after = shard.shard(model, blocks, world.shard_mesh(), recipe.precision, reshard=layout.pp == 1)
        if is_on_meta(model):
            model.to_empty(device=world.device)
        return model, partial(shard.set_sync, model), after
    if world.data_group is not None and not recipe.apart:
        replica = dp.wrap(model, world.data_group, world.device, recipe.ddp)
        return replica, partial(dp.set_sync, replica), lambda: None
    return model, lambda on: None, lambda: None


def _check(model: Any, world: World) -> None:
    """Check that the model has trainable parameters with values, and that all ranks created the same model."""
    name = type(model).__name__
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(
            f"{name} has no parameter with requires_grad=True, so there is nothing to train; give a model with "
            f"such a parameter"
        )
    tensors = {key: value for key, value in model.state_dict().items() if hasattr(value, "is_meta")}  # or extra state
    if world.mesh is None:
        return
    import torch

    own = [f"{key} {tuple(value.shape)} {value.dtype}" for key, value in tensors.items()]
    if agreement.is_same(agreement.digest(own), world.everyone):  # the names are exchanged only if the checksums differ
        return
    every: list[Any] = [None] * world.layout.ranks
    torch.distributed.all_gather_object(every, own)
    for rank, other in enumerate(every):
        if other != every[0]:
            raise UsageError(f"rank {rank} made another {name} than rank 0: {_difference(every[0], other)}")


def _difference(one: list[str], other: list[str]) -> str:
    """Return a message that names the first difference between two lists of parameters."""
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            return f"it has {theirs}, rank 0 has {mine}"
    return f"it has {len(other)} tensors, rank 0 has {len(one)}"


def _same_values(model: Any) -> None:
    """Broadcast the parameters and buffers of rank 0 to all ranks."""
    import torch

    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            torch.distributed.broadcast(value, 0)
