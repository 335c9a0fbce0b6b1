"""Low-rank matrices beside frozen weights (LoRA, Hu et al. 2021; with weights of four bits, Dettmers et al. 2023).

A product of in x out gets two more, of in x rank and rank x out. What they keep for the backward pass is counted as
Hugging Face's PEFT does it: matrices in fp32, to which every input is brought, and dropout before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from paceline.core.errors import UsageError
from paceline.plan.model import ConvNet, Model, Transformer
from paceline.plan.setting import Adapted, Layout

Where = Literal["qv", "all-linear"]
# Bits that a frozen weight takes; of four bits with a scale of 32 for each 64 of them (NF4 of bitsandbytes).
FROZEN_BITS = {4: 4.5, 8: 8.0, 16: 16.0, 32: 32.0}


def low_rank(model: Model, rank: int, where: Where, bits: int) -> Adapted:
    """Return what is trained with adapters of a rank.

    Args:
        model: Whose weights are frozen.
        rank: Of the matrices.
        where: On queries and values, as in the paper; or on every product of a block.
        bits: Of a frozen weight, a key of `FROZEN_BITS`.

    Raises:
        UsageError: The model has products that adapters are not planned for, or narrower ones than the rank.
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
    """Inputs and outputs of the products of a block that have adapters."""
    queries, values = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield model.hidden, queries
    yield model.hidden, values
    if where == "all-linear":
        yield model.hidden, values  # keys
        yield queries, model.hidden
        yield from [(model.hidden, model.ffn)] * (2 if model.gated else 1)
        yield model.ffn, model.hidden


def refusal(adapted: Adapted, layout: Layout) -> str:
    """Return why frozen weights cannot be laid out so; nothing where they can."""
    inner = [axis for axis in ("tp", "pp", "cp", "ep") if getattr(layout, axis) > 1]
    if adapted.frozen_bits >= 16 or not inner:
        return ""
    return (
        f"frozen weights with fewer than 16 bits are supported only with the layout axes dp and shard, not with "
        f"{', '.join(inner)}"
    )
