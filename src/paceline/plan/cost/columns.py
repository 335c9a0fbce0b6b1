"""Cases as columns: one array for each quantity, with one entry for each case.

So the same formulas compute one plan, all layouts of a cluster, and the fit of the constants. Only transformers become
columns; the step of a convolutional network is computed case by case (`convnet`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.plan.cost.case import Case, Cluster, PlannedLayout, Training
from paceline.plan.cost.machines import ELEMENT_BYTES, SIXTEEN, ceiling, domain, link_bytes_per_s, network_bytes_per_s
from paceline.plan.models.architecture import Model, Transformer
from paceline.plan.models.counted_step import CountedStep

Floats = NDArray[np.float64]

FAMILIES = ("Volta", "Ampere", "Ada", "Hopper", "Blackwell", "other")
_OF_MODEL = (
    *(
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "seq",
        "gated",
        "causal",
        "experts",
        "top_k",
    ),
    *("expert_ffn", "shared_ffn", "sparse_layers", "attention_params", "expert_params", "head_share", "span"),
    "head_blocks",
)
_NOT_COUNTED = {field.name: 0.0 for field in fields(CountedStep)}
_DEEP = {"lora": 1.0, "lora_all": 1.0, "adapter_v2": 2.0}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """All quantities of some cases, each an array of shape (cases,). Booleans are 1.0 and 0.0."""

    # the model
    layers: Floats
    hidden: Floats
    heads: Floats
    kv_heads: Floats
    head_dim: Floats
    ffn: Floats
    vocab: Floats
    seq: Floats
    matrices: Floats  # matrices of a feed-forward: 3 gated, 2 plain
    gated: Floats
    causal: Floats
    experts: Floats
    top_k: Floats
    expert_ffn: Floats
    shared_ffn: Floats
    sparse_layers: Floats
    attention_params: Floats  # attention weights of one block
    block_params: Floats  # weights of all blocks without routed experts
    expert_params: Floats
    embedding_params: Floats
    tied: Floats
    head_share: Floats
    head_blocks: Floats  # cost of the output layer, in blocks
    span: Floats
    # how
    dp: Floats
    shard: Floats
    tp: Floats
    pp: Floats
    cp: Floats
    ep: Floats
    micro_batch: Floats
    micro_steps: Floats
    chunks: Floats
    gpipe: Floats
    zero_bubble: Floats
    balanced: Floats  # stages have equal cost, with the output layer
    recompute_full: Floats  # share of the blocks that are recomputed
    recompute_cheap: Floats
    recompute_attention: Floats
    recompute_operators: Floats
    shard_parameters: Floats
    shard_optimizer: Floats
    fused: Floats
    plain_attention: Floats
    early_attention: Floats
    tuned_attention: Floats
    overlap_reduce: Floats
    overlap_tensor: Floats
    piecewise: Floats
    sequence_parallel: Floats
    trainable: Floats
    adapters: Floats
    deep_adapters: Floats  # 1: low-rank ones, 2: scales on every layer
    wide_adapters: Floats  # with low-rank adapters on more products: share of the inputs with adapters
    frozen_bits: Floats
    loss_in_place: Floats
    weight_bytes: Floats
    gradient_bytes: Floats
    optimizer_bytes: Floats
    element_bytes: Floats
    low_bits: Floats  # formats below 16 bits
    four_bits: Floats
    wide: Floats  # fp32 and tf32
    # of the program, as `CountedStep` has them; 0.0 if they were not counted
    counted: Floats  # whether kernels and bytes were counted
    forward_kernels: Floats
    backward_kernels: Floats
    forward_moved: Floats
    backward_moved: Floats
    weight_moved: Floats
    logit_moved: Floats
    optimizer_moved: Floats
    saved: Floats
    weight_saved: Floats
    logit_peak: Floats
    optimizer_peak: Floats
    # the cluster
    gpus: Floats
    per_node: Floats
    nodes: Floats
    domain: Floats
    ceiling: Floats  # FLOP/s of the format
    ceiling_wide: Floats  # FLOP/s of 16 bits, or of the format if it is wider
    memory_bandwidth: Floats
    memory: Floats
    link: Floats
    network: Floats
    family: NDArray[np.int64]  # index in FAMILIES

    def __len__(self) -> int:
        return len(self.layers)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Columns:
        """Return the columns of the selected cases."""
        return Columns(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def columns_of(cases: Sequence[Case]) -> Columns:
    """Return cases as columns, one entry for each case.

    Raises:
        UsageError: A GPU does not support the precision of its case.
        TypeError: A case is not a transformer.
    """
    parts = [
        (_once(lambda case: _model(case.model), cases, lambda case: (id(case.model),))),
        (
            _once(
                lambda case: _cluster(case.cluster, case.training.precision),
                cases,
                lambda case: (id(case.cluster), case.training.precision),
            )
        ),
        [_choices(case.layout, case.training) for case in cases],
    ]
    return Columns(**_side_by_side(parts))


def configurations(model: Transformer, choices: Sequence[tuple[PlannedLayout, Training]]) -> Columns:
    """Return configurations of one model as columns. The columns of the machines are 0; `on_cluster` sets them.

    Args:
        model: The model of all configurations.
        choices: Layout and training settings of each configuration.
    """
    nowhere = {field.name: 0.0 for field in fields(Columns)}
    chosen = [_choices(layout, training) for layout, training in choices]
    return Columns(**_side_by_side([[nowhere] * len(choices), [_model(model)] * len(choices), chosen]))


def on_cluster(columns: Columns, cluster: Cluster, precision: str) -> Columns:
    """Return configurations with the columns of the machines set to those of a cluster.

    Raises:
        UsageError: The GPU does not support the precision.
    """
    hardware = _cluster(cluster, precision)
    count = len(columns)
    filled: dict[str, Any] = {name: np.full(count, value) for name, value in hardware.items() if name != "family"}
    return replace(columns, family=np.full(count, int(hardware["family"]), dtype=np.int64), **filled)


def _side_by_side(parts: Sequence[Sequence[dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rows in parts:
        for name in rows[0]:
            found[name] = np.array([row[name] for row in rows], np.int64 if name == "family" else np.float64)
    return found


def _once(
    part: Callable[[Case], dict[str, float]], cases: Sequence[Case], key: Callable[[Case], tuple[object, ...]]
) -> list[dict[str, float]]:
    """Return the result of `part` for each case, computed only once for cases with the same key."""
    known: dict[tuple[object, ...], dict[str, float]] = {}
    for case in cases:
        if key(case) not in known:
            known[key(case)] = part(case)
    return [known[key(case)] for case in cases]


def _model(model: Model) -> dict[str, float]:
    if not isinstance(model, Transformer):
        raise TypeError(f"{model.name} is not a transformer")
    return {name: float(getattr(model, name)) for name in _OF_MODEL} | {
        "matrices": 3.0 if model.gated else 2.0,
        "block_params": float(model.block_params - model.expert_params),
        "embedding_params": float(model.embedding_params),
        "tied": float(model.tied),
    }


def _choices(layout: PlannedLayout, how: Training) -> dict[str, float]:
    share = how.recomputed_share
    return {
        "micro_batch": how.micro_batch,
        "micro_steps": float(how.micro_steps),
        "chunks": float(how.chunks),
        "gpipe": float(how.schedule == "gpipe"),
        "zero_bubble": float(how.schedule == "zero-bubble"),
        "balanced": float(how.balanced),
        "recompute_full": share * (1.0 * (how.recompute == "full") + 0.5 * (how.recompute == "half")),
        "recompute_cheap": share * (how.recompute == "cheap"),
        "recompute_attention": share * (how.recompute == "attention"),
        "recompute_operators": share * (how.recompute == "operators"),
        "shard_parameters": float(how.sharded == "parameters"),
        "shard_optimizer": float(how.sharded != "nothing"),
        "fused": float(how.kernels == "fused"),
        "plain_attention": float(how.attention == "plain"),
        "early_attention": float(how.attention == "early"),
        "tuned_attention": float(how.attention == "tuned"),
        "overlap_reduce": float(how.overlap_reduce),
        "overlap_tensor": float(how.overlap_tensor),
        "piecewise": float(how.piecewise),
        "sequence_parallel": float(how.sequence_parallel),
        "trainable": float(how.trainable),
        "adapters": float(how.adapters != ""),
        "deep_adapters": _DEEP.get(how.adapters, 0.0),
        "wide_adapters": how.adapted_share * (how.adapters == "lora_all"),
        "frozen_bits": how.frozen_bits,
        "loss_in_place": float(how.loss_in_place),
        "weight_bytes": how.weight_bytes,
        "gradient_bytes": how.gradient_bytes,
        "optimizer_bytes": how.optimizer_bytes,
        "element_bytes": ELEMENT_BYTES[how.precision],
        "low_bits": float(how.precision in ("fp8", "fp4")),
        "four_bits": float(how.precision == "fp4"),
        "wide": float(how.precision in ("fp32", "tf32")),
        "counted": float(how.counted is not None),
        **(asdict(how.counted) if how.counted else _NOT_COUNTED),
    } | {axis: float(getattr(layout, axis)) for axis in ("dp", "shard", "tp", "pp", "cp", "ep")}


def _cluster(cluster: Cluster, how: str) -> dict[str, float]:
    sixteen = how if how in (*SIXTEEN, "fp32", "tf32") else "bf16"
    kin = cluster.gpu.architecture.removesuffix(" Ultra")
    return {
        "gpus": float(cluster.count),
        "per_node": float(cluster.per_node),
        "nodes": float(cluster.nodes),
        "domain": float(domain(cluster)),
        "ceiling": ceiling(cluster.gpu, how),
        "ceiling_wide": ceiling(cluster.gpu, sixteen),
        "memory_bandwidth": cluster.gpu.memory_bytes_per_s,
        "memory": cluster.memory_bytes,
        "link": link_bytes_per_s(cluster.gpu),
        "network": network_bytes_per_s(cluster),
        "family": FAMILIES.index(kin if kin in FAMILIES else "other"),
    }


def tokens(c: Columns) -> Floats:
    """Return the tokens per micro-batch on one rank, before tensor parallelism: micro-batch x sequence / cp."""
    return c.micro_batch * c.seq / c.cp


def sparse_share(c: Columns) -> Floats:
    """Return the share of blocks with experts."""
    return c.sparse_layers / c.layers
