"""The model, machines and training that a plan was requested for, and the assumptions of the plan."""

from __future__ import annotations

from paceline.core import units
from paceline.plan.models.architecture import Model, Transformer
from paceline.plan.search.wish import Wish
from paceline.report.page.markup import Markup, element, section, table
from paceline.report.plan.words import adapted, weights

_KERNELS = {
    "fused": "Element-wise kernels are fused, as `torch.compile` does (`--eager`: not fused).",
    "eager": "Element-wise kernels are not fused.",
}


def question(wish: Wish) -> Markup:
    """Return the section with the requested model, machines and training in numbers."""
    rows = [("Model", _model(wish.model)), ("Machines", _machines(wish)), ("Training", _training(wish))]
    return section("question", "What was asked", table((("", ""), ("", "")), rows, class_="asked"))


def _model(model: Model) -> str:
    if not isinstance(model, Transformer):
        return (
            f"{model.name}: {weights(model)}; {model.layers} convolutions of {model.flops / 1e9:.3g} GFLOP forward and "
            f"{model.outputs / 1e6:.3g} million outputs per sample"
        )
    experts = (
        f", {model.experts} experts of width {model.expert_ffn}, {model.top_k} used per token" if model.experts else ""
    )
    heads = f"{model.heads} heads" + (
        "" if model.kv_heads == model.heads else f" ({model.kv_heads} of keys and values)"
    )
    return (
        f"{model.name}: {weights(model)}; {model.layers} blocks of width {model.hidden:,}, "
        f"{heads}, feed-forward {model.ffn:,}{', gated' if model.gated else ''}{experts}, vocabulary {model.vocab:,}, "
        f"{model.seq:,} tokens per sample, {'causal' if model.causal else 'full'} attention"
    )


def _machines(wish: Wish) -> str:
    cluster = wish.cluster
    speed = cluster.network_bytes_per_s
    network = "the usual network of nodes with this GPU" if speed is None else f"{speed * 8 / 1e9:,.0f} Gbit/s per node"
    memory = units.size(cluster.memory_bytes)
    return f"{cluster.count:,} x {cluster.gpu.name} of {memory}, {cluster.per_node} per node; {network}"


def _training(wish: Wish) -> str:
    tokens = f" ({wish.global_batch * wish.model.seq:,} tokens)" if isinstance(wish.model, Transformer) else ""
    weight, gradient, optimizer = wish.states
    asked = [f"layout {wish.layout}"] if wish.layout else []
    asked += [f"micro-batch {wish.micro_batch}"] if wish.micro_batch else []
    asked += [f"schedule {wish.schedule}"] if wish.schedule else []
    asked += ["only layouts that `paceline.train` supports"] if wish.by_engine else []
    only = f"; requested: {', '.join(asked)}" if asked else ""
    beside = adapted(wish.adapted)
    what = f"{beside}; a trained weight" if beside else "a weight"
    return (
        f"{wish.global_batch:,} samples per step{tokens}, matrix products in {wish.precision}; {what} takes "
        f"{weight:g} B, its gradient {gradient:g} B, the optimizer ({wish.optimizer}) {optimizer:g} B{only}"
    )


def assumed(wish: Wish) -> Markup:
    """Return the section with the assumptions behind all numbers on the page."""
    pictures = (
        "Assumptions: images have the size of ImageNet images, and decoding is as fast as in published measurements "
        "of such nodes.",
        "The memory of convolutional networks is predicted, but was not compared with measurements, because no "
        "published measurement was available.",
    )
    points = (
        *(() if isinstance(wish.model, Transformer) else pictures),
        _KERNELS[wish.kernels],
        "Gradients are exchanged between ranks during the backward pass. Attention uses kernels that are optimized "
        "for the GPU. Tensor "
        "parallelism includes sequence parallelism.",
        "A plan fits if its probability of fitting in memory is at least 0.9. The interval of its step time contains "
        "80% of the published measurements of similar plans that were not used to fit the cost model.",
        "A checkpoint is written at 2 GB/s per node. A restart after an interruption takes ten minutes.",
    )
    items = (element("li", point.replace("`", "")) for point in points)
    return section("assumed", "Assumptions", element("ul", *items, class_="evidence"))
