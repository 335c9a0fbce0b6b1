"""Which weights of a module are trained beside frozen ones? Pairs of low-rank matrices, as `adapters` plans them.

A pair is told by its shapes, whatever it is called: the smallest part that has one frozen matrix of in x out has two
trained ones beside it, of in x rank and of rank x out, either way round. All that is trained must be of such pairs.
What they keep is counted as of PEFT's layers, also on queries and values alone: those of published rows keep less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.core.errors import UsageError
from paceline.plan.anatomy import blocks_of, in_attention
from paceline.plan.model import Transformer
from paceline.plan.parts import Part, Weight
from paceline.plan.setting import Adapted


@dataclass(frozen=True)
class Pair:
    """Two matrices beside a frozen one.

    Attributes:
        name: Of the part that has them, with dots.
        inputs: Of the frozen matrix, which the first of the two takes as well.
    """

    name: str
    inputs: int


def frozen_part(module: Part) -> Part:
    """Return a module without what is trained."""
    return replace(
        module,
        weights=tuple(weight for weight in module.weights if weight.frozen),
        children=tuple((name, frozen_part(child)) for name, child in module.children),
    )


def pairs_of(module: Part) -> list[Pair]:
    """Return all that is trained of a module.

    Raises:
        UsageError: Something else is than pairs of low-rank matrices in blocks.
    """
    blocks = blocks_of(module) or []
    within = {weight.number for block in blocks for weight in _trained(block)}
    for name, weight in module.named_weights():
        if not weight.frozen and weight.number not in within:
            raise UsageError(f"{name} is trained and is outside the blocks")
    return [pair for block in blocks for pair in _pairs(block, "")]


def adapted(pairs: Sequence[Pair], model: Transformer, trainable: int, frozen_bytes: float) -> Adapted:
    """Return what is trained beside the frozen weights of a transformer.

    Args:
        pairs: All that is trained.
        model: What is frozen.
        trainable: Weights that are trained.
        frozen_bytes: Of a frozen weight.

    Raises:
        UsageError: It has experts, and adapters outside of attention.
    """
    narrow = [pair for pair in pairs if not in_attention(pair.name)]
    if model.experts and narrow:
        raise UsageError(
            f"{narrow[0].name} is trained in a block with experts, where adapters are planned on attention only"
        )
    return Adapted(
        adapters="lora_all",
        trainable=trainable,
        frozen_bits=round(8 * frozen_bytes, 1),  # norms may have more
        adapted_share=min(1.0, sum(pair.inputs for pair in pairs) / _inputs(model)),
    )


def _inputs(model: Transformer) -> int:
    """Inputs of all products of all blocks: queries, keys, values, the output, and those of the feed-forward."""
    outer = model.heads * model.head_dim
    return model.layers * ((5 if model.gated else 4) * model.hidden + outer + model.ffn)


def _pairs(part: Part, name: str) -> Iterator[Pair]:
    """Go through the pairs of a part.

    Raises:
        UsageError: Something is trained that is of none.
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


def _pair(name: str, beside: Weight, trained: Sequence[Weight]) -> Pair:
    shapes = " and ".join(" x ".join(map(str, weight.shape)) for weight in trained)
    if len(trained) == 2:
        down, up = (set(weight.shape) for weight in trained)
        for inputs, outputs in (beside.shape, beside.shape[::-1]):
            for rank in down & up:
                if rank < min(beside.shape) and down == {inputs, rank} and up == {rank, outputs}:
                    return Pair(name, inputs)
    raise UsageError(f"{shapes} of {name} are trained and are not a low-rank pair for {beside.name}")


def _trained(part: Part) -> list[Weight]:
    return [weight for _, weight in part.named_weights() if not weight.frozen]
