"""Low-rank adapters (LoRA, Hu et al. 2021) on frozen weights, also on 4-bit weights (Dettmers et al. 2023).

An adapter adds two matrix products, with weights of in x rank and rank x out, to a product with a frozen weight of in x
out. Activation memory is counted as in Hugging Face's PEFT: fp32 matrices, inputs converted to fp32, and dropout before
them.

In a module, an adapter is recognized by its shapes, whatever its name: the smallest submodule with one frozen matrix of
in x out and two trained matrices, of in x rank and rank x out, in either orientation. All trained weights must belong
to such pairs of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline.core.errors import UsageError
from paceline.plan.models.architecture import ConvNet, Model, Transformer
from paceline.plan.models.module_tree import ModulePart, Weight, blocks_of, in_attention

# Low-rank matrices on queries and values, or on more products of a block; prompts, without and with scales everywhere.
Adapters = Literal["", "lora", "lora_all", "adapter", "adapter_v2"]


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """Which part of a model is trained if other weights are frozen; by default nothing is frozen."""

    adapters: Adapters = ""
    trainable: int = 0  # number of trained weights
    frozen_bits: float = 16.0  # bits of a frozen weight
    adapted_share: float = 1.0  # with `lora_all`: share of the inputs of a block's products that have adapters


Where = Literal["qv", "all-linear"]
# Bits of a frozen weight in memory; 4-bit weights (NF4 of bitsandbytes) have a 32-bit scale for each 64 weights.
FROZEN_BITS = {4: 4.5, 8: 8.0, 16: 16.0, 32: 32.0}


def low_rank_adapters(model: Model, rank: int, where: Where, bits: int) -> Adapted:
    """Return the trained part of a model with low-rank adapters.

    Args:
        model: The frozen model.
        rank: Rank of the matrices.
        where: On queries and values, as in the paper, or on every product of a block.
        bits: Bits of a frozen weight, a key of `FROZEN_BITS`.

    Raises:
        UsageError: Adapters on this model are not supported, or a product is narrower than the rank.
    """
    if isinstance(model, ConvNet):
        raise UsageError(f"--lora needs a transformer, and {model.name} is a convolutional network; leave --lora out")
    if where == "all-linear" and model.experts:
        raise UsageError(f"adapters on the experts of {model.name} are not supported; give --lora-on qv")
    products = list(_products(model, where))
    if rank > (most := min(map(min, products))):
        raise UsageError(
            f"--lora {rank} is too high: a matrix of {model.name} is only {most} wide; give {most} or less"
        )
    trained = model.layers * rank * sum(map(sum, products))
    return Adapted(adapters="lora" if where == "qv" else "lora_all", trainable=trained, frozen_bits=FROZEN_BITS[bits])


def _products(model: Transformer, where: Where) -> Iterator[tuple[int, int]]:
    """Yield the input and output width of each matrix product of a block that gets an adapter."""
    queries, values = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield model.hidden, queries
    yield model.hidden, values
    if where == "all-linear":
        yield model.hidden, values  # keys
        yield queries, model.hidden
        yield from [(model.hidden, model.ffn)] * (2 if model.gated else 1)
        yield model.ffn, model.hidden


@dataclass(frozen=True)
class AdapterPair:
    """The two matrices of an adapter on a frozen matrix.

    Attributes:
        name: Dotted name of the module that contains the two matrices.
        inputs: Input width of the frozen matrix and of the first adapter matrix.
    """

    name: str
    inputs: int


def frozen_part(module: ModulePart) -> ModulePart:
    """Return a copy of a module tree without the trained weights."""
    return replace(
        module,
        weights=tuple(weight for weight in module.weights if weight.frozen),
        children=tuple((name, frozen_part(child)) for name, child in module.children),
    )


def pairs_of(module: ModulePart) -> list[AdapterPair]:
    """Return all adapters of a module tree.

    Raises:
        UsageError: A trained weight does not belong to a low-rank pair in a block.
    """
    blocks = blocks_of(module) or []
    within = {weight.number for block in blocks for weight in _trained(block)}
    for name, weight in module.named_weights():
        if not weight.frozen and weight.number not in within:
            raise UsageError(f"{name} is trained and is outside the blocks")
    return [pair for block in blocks for pair in _pairs(block, "")]


def adapted_model(pairs: Sequence[AdapterPair], model: Transformer, trainable: int, frozen_bytes: float) -> Adapted:
    """Return the trained part of a transformer with adapters.

    Args:
        pairs: All adapters.
        model: The frozen model.
        trainable: Number of trained weights.
        frozen_bytes: Bytes of a frozen weight.

    Raises:
        UsageError: The model has both experts and adapters outside attention.
    """
    narrow = [pair for pair in pairs if not in_attention(pair.name)]
    if model.experts and narrow:
        raise UsageError(
            f"{narrow[0].name} is trained in a block with experts, where adapters are planned on attention only"
        )
    return Adapted(
        adapters="lora_all",
        trainable=trainable,
        frozen_bits=round(8 * frozen_bytes, 1),  # norms may have more bits
        adapted_share=min(1.0, sum(pair.inputs for pair in pairs) / _inputs(model)),
    )


def _inputs(model: Transformer) -> int:
    """Return the sum of the input widths of all matrix products of all blocks."""
    outer = model.heads * model.head_dim
    return model.layers * ((5 if model.gated else 4) * model.hidden + outer + model.ffn)


def _pairs(part: ModulePart, name: str) -> Iterator[AdapterPair]:
    """Yield the adapters in a module and its submodules.

    Raises:
        UsageError: A trained weight does not belong to an adapter.
    """
    trained, frozen = _trained(part), [weight for _, weight in part.named_weights() if weight.frozen]
    matrices = [weight for weight in frozen if len(weight.shape) == 2]
    if not trained:
        return
    if len(matrices) == 1:
        yield _pair(name, matrices[0], trained)
        return
    if not matrices or any(not weight.frozen for weight in part.weights):
        first = next(each for each, weight in part.named_weights(f"{name}." if name else "") if not weight.frozen)
        raise UsageError(f"{first} is trained in a block and is not a low-rank matrix of a frozen one")
    for child, below in part.children:
        yield from _pairs(below, f"{name}.{child}" if name else child)


def _pair(name: str, beside: Weight, trained: Sequence[Weight]) -> AdapterPair:
    shapes = " and ".join(" x ".join(map(str, weight.shape)) for weight in trained)
    if len(trained) == 2:
        down, up = (set(weight.shape) for weight in trained)
        for inputs, outputs in (beside.shape, beside.shape[::-1]):
            for rank in down & up:
                if rank < min(beside.shape) and down == {inputs, rank} and up == {rank, outputs}:
                    return AdapterPair(name, inputs)
    raise UsageError(f"{shapes} of {name} are trained and are not a low-rank pair for {beside.name}")


def _trained(part: ModulePart) -> list[Weight]:
    return [weight for _, weight in part.named_weights() if not weight.frozen]
