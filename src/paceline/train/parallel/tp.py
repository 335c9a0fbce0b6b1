"""Tensor parallelism (tp): each matrix is split over ranks.

A transformer block has two all-reduces in forward and four in backward. The first matrices of an attention layer
(query, key and value) or of an MLP (the up-projection) are split by columns, so that each rank has whole heads or
hidden units. The last matrix (the output projection) is split by rows, and its result is the sum over ranks (Shoeybi et
al. 2019, Megatron-LM, section 3). Each rank keeps 1/n of the matrices and of the activations between them. The cost is
an all-reduce of activations, batch x length x width, for each attention layer or MLP in forward and for each first
matrix in backward (torch's styles reduce the gradient of each input; counted by `benchmarks/costs.py`), not overlapped.

The model's own plan says how each matrix is split (`_tp_plan` or `tp_plan`: names with `*` mapped to a style, as in
Hugging Face models). Without a plan, submodules with usual names are split. Other models are refused.

    colwise, rowwise                 the first and the last matrix of an attention layer or MLP
    colwise_gather_output            by columns, with the whole result on each rank (the last layer)
    embedding_rowwise                each rank looks up some of the tokens
    replicated_with_grad_allreduce   a norm of each head, [batch, length, heads, head]: not split, its gradients summed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.ranks import random_states

_COLUMNS, _ROWS, _HEADS = "colwise", "rowwise", "replicated_with_grad_allreduce"
_STYLES = (_COLUMNS, _ROWS, "colwise_gather_output", "colwise_rep", "embedding_rowwise", _HEADS)
_USUAL = (
    (("q_proj", "k_proj", "v_proj"), "o_proj"),
    (("q_proj", "k_proj", "v_proj"), "out_proj"),
    (("wq", "wk", "wv"), "wo"),
    (("gate_proj", "up_proj"), "down_proj"),
    (("w1", "w3"), "w2"),
    (("up_proj",), "down_proj"),
    (("fc1",), "fc2"),
    (("fc_in",), "fc_out"),
)  # split by columns, and by rows


def split(model: Any, plan: Mapping[str, str], mesh: Any) -> None:
    """Split the matrices of a model, or of some of its layers, in place.

    Args:
        model: A module. Names of the plan that it does not have are ignored.
        plan: The plan of the whole model, as `plan_of` returns it.
        mesh: One-dimensional mesh.

    Raises:
        UsageError: The size of a matrix is not a multiple of the number of ranks.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    modules = dict(model.named_modules())
    own = {name: how for name, how in plan.items() if hasattr(modules.get(name), "weight")}  # a stage of pp has not all
    _check_sizes(modules, own, int(mesh.size()))
    if own:
        parallelize_module(model, mesh, {name: _style(how) for name, how in own.items()})
        _draw_apart(modules, own, mesh)


def _draw_apart(modules: Mapping[str, Any], plan: Mapping[str, str], mesh: Any) -> None:
    """Make ranks draw different random numbers between split matrices, so that their dropout masks differ."""
    import torch

    on_gpu = mesh.device_type == "cuda"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    split = random_states.Split(mesh.get_local_rank(), device)
    for name, how in plan.items():
        if how == _COLUMNS:
            modules[name].register_forward_hook(split.enter)
        if how == _ROWS:
            modules[name].register_forward_pre_hook(split.leave)


def _style(how: str) -> Any:
    """Return torch's parallel style for a style name."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    if how == _HEADS:
        return SequenceParallel(sequence_dim=2, use_local_output=True)
    if how == "embedding_rowwise":
        return RowwiseParallel(input_layouts=Replicate())
    if how == _ROWS:
        return RowwiseParallel()
    return ColwiseParallel() if how == _COLUMNS else ColwiseParallel(output_layouts=Replicate())


def plan_of(model: Any) -> dict[str, str]:
    """Return how each matrix is split: full names of modules, to a style such as ``colwise`` or ``rowwise``.

    Raises:
        UsageError: The model's plan has an unknown style, or the model has no plan and its submodules have unusual
            names.
    """
    own = getattr(model, "_tp_plan", None) or getattr(model, "tp_plan", None)
    plan = _matched(model, own) if own else _by_names(model)
    if not plan:
        raise UsageError(
            f"{type(model).__name__} contains nothing that tp can split: linear layers with the usual names, such as "
            "fc1 and fc2, in a module without a layer that could be between them and need all features, such as a norm "
            "or an embedding. Give it a plan, "
            'tp_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}, or use shard instead of tp'
        )
    _check_kinds(model, plan)
    _check_apart(model, plan)
    return plan


def _matched(model: Any, own: Mapping[str, str]) -> dict[str, str]:
    """Return the modules that match the model's own plan, with their styles."""
    names = [name for name, _ in model.named_modules()]
    plan: dict[str, str] = {}
    for pattern, how in own.items():
        if how not in _STYLES:
            raise UsageError(
                f"{type(model).__name__}: its plan has {pattern!r}: {how!r}; {', '.join(_STYLES)} are known here. "
                "Give it a tp_plan of these, or use shard instead of tp"
            )
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise UsageError(
                f"{type(model).__name__}: its tensor-parallel plan names {pattern!r}, but no module has this name"
            )
        plan.update(dict.fromkeys(found, how))
    return plan


def _by_names(model: Any) -> dict[str, str]:
    """Return a plan for submodules with usual names, in the same order on all ranks.

    A submodule qualifies only if its other layers work element by element, or cannot be between its matrices.
    """
    plan: dict[str, str] = {}
    for name, part in model.named_modules():
        children = dict(part.named_children())
        for columns, rows in _USUAL:
            if _fits(children, (*columns, rows)):
                prefix = f"{name}." if name else ""
                plan.update({prefix + child: _COLUMNS for child in columns})
                plan[prefix + rows] = _ROWS
                break
    return plan


def _fits(children: Mapping[str, Any], matrices: Sequence[str]) -> bool:
    """Return whether the named matrices are linear layers, and no other child prevents splitting them.

    A child between two matrices receives only a part of the features. This is correct only for a child that works
    element by element. A child outside of the matrices does not matter.
    """
    from torch import nn

    pointwise = (nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity)
    others = [child for name, child in children.items() if name not in matrices]
    return all(isinstance(children.get(name), nn.Linear) for name in matrices) and all(
        isinstance(child, pointwise) or _is_apart(child, children[matrices[0]]) for child in others
    )


def _is_apart(child: Any, first: Any) -> bool:
    """Return whether a layer cannot be between the matrices, because no part of it accepts so many features.

    Args:
        child: A module beside the matrices.
        first: A matrix that is split by columns.
    """
    from torch import nn

    leaves = [module for module in child.modules() if not list(module.children())]
    taken = [_features(leaf) for leaf in leaves if not isinstance(leaf, nn.Dropout | nn.GELU | nn.ReLU | nn.SiLU)]
    return bool(taken) and None not in taken and not {first.out_features} & {*taken}


def _features(layer: Any) -> int | None:
    """Return the number of input features of a linear layer or a norm of one dimension; None for other layers."""
    from torch import nn

    if isinstance(layer, nn.Linear):
        return layer.in_features
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm) and len(layer.normalized_shape) == 1:
        return layer.normalized_shape[0]
    return None


def _check_kinds(model: Any, plan: Mapping[str, str]) -> None:
    """Check that the matrices of a plan are linear layers or embeddings, and not wrappers such as adapters."""
    from torch import nn

    for name, how in plan.items():
        module = model.get_submodule(name)
        if how != _HEADS and not isinstance(module, nn.Linear | nn.Embedding):
            raise UsageError(
                f"{type(model).__name__}: its tensor-parallel plan splits {name}, which is a {type(module).__name__}, "
                "and tp splits linear layers and embeddings only. Give the model a tp_plan without this module, or "
                "use shard instead of tp"
            )


def _check_apart(model: Any, plan: Mapping[str, str]) -> None:
    """Check that no two modules of a plan share a parameter, because splitting would separate them."""
    owner: dict[int, str] = {}
    for name in plan:
        for parameter in model.get_submodule(name).parameters():
            if owner.setdefault(id(parameter), name) != name:
                raise UsageError(
                    f"{type(model).__name__}: {owner[id(parameter)]} and {name} share a parameter, and tp would split "
                    "it for each of them; give each its own parameters (tie_word_embeddings=False), or use "
                    "shard instead"
                )


def check_heads(model: Any, ranks: int) -> None:
    """Check that the attention heads of a Hugging Face model can be split evenly over the ranks.

    Raises:
        UsageError: The number of heads, or of key and value heads, is not a multiple of the number of ranks.
    """
    config = getattr(model, "config", None)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % ranks:
            raise UsageError(
                f"tp={ranks}: {type(model).__name__} has {name}={heads}, which is not a multiple of {ranks}, so the "
                "heads cannot be split evenly; use a smaller tp, or shard instead of tp"
            )


def _check_sizes(modules: Mapping[str, Any], plan: Mapping[str, str], ranks: int) -> None:
    for name, how in plan.items():
        if how == _HEADS:
            continue
        rows = how in (_ROWS, "embedding_rowwise")
        size = modules[name].weight.shape[-1 if how == _ROWS else 0]
        if size % ranks:
            raise UsageError(
                f"tp={ranks}: {name} has {size} {'rows' if rows else 'columns'}, which is not a multiple of {ranks}"
            )
