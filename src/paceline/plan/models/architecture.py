"""The architecture of a transformer or a convolutional network, in numbers.

Parameters are counted as usual: attention 2h·(heads + kv_heads)·d, a gated feed-forward 3hf, a plain one 2hf, an
embedding vh, and vh once more for an output layer that is not tied to the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.core.errors import UsageError

Kernels = Literal["eager", "fused"]

# Values used if neither the user nor a file gives them.
USUAL_SEQ = 2048
USUAL_TOP_K = 2
MASKED_SHARE = 0.16  # share of positions that a masked language model predicts

# What an error proposes if a model cannot be read.
DESCRIBE_BY_NUMBERS = "describe the model with options, such as --params 8b --layers 32 --hidden 4096 --heads 32"


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A transformer. Lengths are in tokens, widths in elements."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # width of a dense feed-forward
    vocab: int
    seq: int
    gated: bool = False  # SwiGLU and similar: three matrices instead of two
    tied: bool = True  # the output layer is the embedding
    causal: bool = True
    positions: int = 0  # learned position embeddings
    experts: int = 0  # 0: dense
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0  # width of the experts that every token passes
    dense_layers: int = 0  # leading blocks without experts, in a model that has them
    attention_weights: int = 0  # of one block, if the usual count does not apply (latent or cross attention)
    span: float = (
        1.0  # scores per token relative to `seq`: above 1 with memory of earlier segments or relative positions
    )
    head_share: float = 1.0  # share of positions that the output layer computes; in BERT only masked ones

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "seq"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} of {self.name} is {getattr(self, name)}; give a number of 1 or more")

    @property
    def attention_params(self) -> int:
        """Return the number of attention weights in one block."""
        if self.attention_weights:
            return self.attention_weights
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def sparse_layers(self) -> int:
        """Return the number of blocks with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def block_params(self) -> int:
        """Return the number of weights in all blocks, experts included; biases and norms (below 0.1%) are left out."""
        matrices = 3 if self.gated else 2
        dense = (self.layers - self.sparse_layers) * matrices * self.hidden * self.ffn
        return (
            self.layers * self.attention_params
            + dense
            + self.expert_params
            + self.sparse_layers * (self.hidden * (self.experts + matrices * self.shared_ffn))
        )

    @property
    def expert_params(self) -> int:
        """Return the number of weights of all routed experts."""
        return self.sparse_layers * self.experts * (3 if self.gated else 2) * self.hidden * self.expert_ffn

    @property
    def embedding_params(self) -> int:
        """Return the number of weights of the embeddings, and of the output layer if it is not tied to them."""
        return self.hidden * (self.vocab * (1 if self.tied else 2) + self.positions)

    @property
    def params(self) -> int:
        """Return the number of weights."""
        return self.block_params + self.embedding_params

    @property
    def head_blocks(self) -> float:
        """Return the cost of the output layer in blocks.

        It is the number of weights of this layer over the mean number of weights of a block that one token uses.
        """
        active = self.block_params - self.expert_params
        active += self.sparse_layers * self.top_k * (3 if self.gated else 2) * self.hidden * self.expert_ffn
        return self.vocab * self.hidden * self.layers / active


@dataclass(frozen=True, kw_only=True)
class ConvNet:
    """A convolutional network, described by its cost for one sample.

    Activations are counted in elements, because their bytes depend on the number format.
    """

    name: str
    params: int
    flops: float  # of one forward pass over one sample; a multiply-add is two
    narrow_flops: float  # the part in depthwise and grouped convolutions, which run slowly on matrix units
    outputs: float  # elements that convolutions write for one sample, normalised and activated afterwards
    kept: float  # elements of one sample that are kept for the backward pass
    kept_bytes: float = 0.0  # bytes of indices and masks, which have the same size in every format
    layers: int  # convolutions
    gated: bool = False  # swish and squeeze-and-excitation in every block, which read and scale the maps once more


Model = Transformer | ConvNet
