"""Which model and which machines does a user mean? Numbers, a Hugging Face ``config.json``, a published name; a word.

``64xH100-SXM`` are cards, ``8xp5.48xlarge`` instances of a cloud; a network is ``400gbps`` per node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.hardware.catalogue import Gpu, Instance, find_gpu, find_instance, instances
from paceline.plan.convnets import convnet
from paceline.plan.machines import card
from paceline.plan.model import ConvNet, Model, Transformer
from paceline.plan.named import from_numbers, named
from paceline.plan.setting import Cluster

_USUAL_SEQ = 2048
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}

# What clouds call a card, by the memory they give in GiB (within a tenth); what is not here is not planned for.
_CLOUD_NAMES = {
    ("V100", 16): "V100-16GB-SXM2",
    ("V100", 32): "V100-32GB-SXM2",
    ("T4", 16): "T4",
    ("A10", 24): "A10",
    ("A10G", 22): "A10G",
    ("L4", 22): "L4",
    ("L40S", 45): "L40S",
    ("L40S", 48): "L40S",
    ("A6000", 48): "RTX-A6000",
    ("A100", 40): "A100-40GB-SXM",
    ("A100", 80): "A100-80GB-SXM",
    ("A100-80GB", 80): "A100-80GB-SXM",
    ("H100", 80): "H100-SXM",
    ("H200", 141): "H200-SXM",
    ("B200", 179): "B200-SXM",
    ("B200", 180): "B200-SXM",
    ("B300", 269): "B300-SXM",
}


@dataclass(frozen=True, kw_only=True)
class Machines:
    """A cluster and the instances that it is made of, where it is rented."""

    cluster: Cluster
    instance: Instance | None = None

    @property
    def usd_per_hour(self) -> float | None:
        """On-demand price of all of it; None where it is not known."""
        if self.instance is None or self.instance.on_demand_usd_h is None:
            return None
        return self.instance.on_demand_usd_h * self.cluster.nodes

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        if self.instance is None:
            return f"{self.cluster.count} x {self.cluster.gpu.name}"
        return f"{self.cluster.nodes} x {self.instance.provider}/{self.instance.instance_type}"


def amount(text: str) -> float:
    """Read ``8b``, ``70.6B``, ``300m`` or ``15t``.

    Raises:
        UsageError: It is no such number above zero.
    """
    found = re.fullmatch(r"([\d.]+)\s*([kmbt]?)", text.strip().lower())
    try:
        value = float(found[1]) * _SCALES[found[2]] if found else 0.0
    except ValueError:
        value = 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is no amount; write 8b, 350m or 15t")
    return value


def machines(text: str, per_node: int | None, network: str | None, table: Sequence[Instance] | None = None) -> Machines:
    """Read ``64xH100-SXM`` or ``8xp5.48xlarge``, an instance of a price table (None: the one that is shipped).

    Raises:
        UsageError: Neither a card nor an instance is called so, or a number makes no sense.
    """
    found = re.fullmatch(r"(\d+)\s*[x*]\s*(.+)", text.strip())
    count, name = (int(found[1]), found[2]) if found else (1, text.strip())
    if count < 1:
        raise UsageError(f"{text!r} is no machine; write 8xH100-SXM")
    speed = None if network is None else network_bytes_per_s(network)
    known = instances() if table is None else table
    if name.lower().rpartition("/")[2] in {each.instance_type.lower() for each in known}:
        return of_instance(find_instance(name, known), count, speed)
    gpu = card(name)
    return Machines(
        cluster=Cluster(gpu=gpu, count=count, per_node=min(per_node or 8, count), network_bytes_per_s=speed)
    )


def of_instance(instance: Instance, count: int, network: float | None = None) -> Machines:
    """Return so many instances.

    Raises:
        UsageError: Nothing is known about its card, or it has a share of one only.
    """
    gpu = card_of(instance)
    if gpu is None or instance.gpu_count < 1:
        raise UsageError(f"nothing is known about {instance.gpu_count:g} x {instance.gpu} of {instance.instance_type}")
    each = int(instance.gpu_count)
    cluster = Cluster(
        gpu=gpu,
        count=count * each,
        per_node=each,
        network_bytes_per_s=network,
        memory_gib=instance.gpu_memory_bytes / 2**30,
    )
    return Machines(cluster=cluster, instance=instance)


def card_of(instance: Instance) -> Gpu | None:
    """Return the card of an instance; None when it is not in the table."""
    gib = instance.gpu_memory_bytes / 2**30
    for (name, memory), row in _CLOUD_NAMES.items():
        if name == instance.gpu and abs(gib - memory) < 0.1 * memory:
            return find_gpu(row)
    return None


def network_bytes_per_s(text: str) -> float:
    """Read ``400gbps`` of a node, as bytes/s one way.

    Raises:
        UsageError: It is no speed above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(g|t)b(?:ps|/s|it/s)", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"{text!r} is no speed of a network; write 400gbps")
    return float(found[1]) * (1e9 if found[2] == "g" else 1e12) / 8


def model_of(subject: str | None, numbers: Mapping[str, Any], image: int | None = None) -> Model:
    """Return the model that a path, a published name or numbers mean; numbers change what a name gives.

    Args:
        subject: A ``config.json``, a published name such as ``llama-3-8b``, a ``module:factory``, or None.
        numbers: Fields of `Transformer`, and ``params``; None where not given.
        image: Pixels on a side of a picture, of a convolutional ``module:factory``.

    Raises:
        UsageError: It is none of these, or too little is given.
    """
    given = {name: value for name, value in numbers.items() if value is not None}
    params = given.pop("params", None)
    if subject is None:
        seq = given.pop("seq", _USUAL_SEQ)
        return from_numbers("the model", arch=_arch(given), params=params, seq=seq, given=given)
    if ":" in subject:
        from paceline.plan.capture import from_factory

        made = from_factory(subject, given.pop("seq", _USUAL_SEQ), image)
        return replace(made, **given) if isinstance(made, Transformer) else made
    if subject.endswith(".json"):
        return replace(from_config(Path(subject)), **given)
    found = named(subject)
    return _network(subject) if found is None else replace(found, **given)


def _network(name: str) -> ConvNet:
    try:
        return convnet(name)
    except UsageError:
        raise UsageError(
            f"{name!r} is no config.json and no published model that is known (such as llama-3-8b or resnet-50); "
            "give its numbers: --params 8b --layers 32 --hidden 4096 --heads 32"
        ) from None


def _arch(given: dict[str, Any]) -> str:
    if given.get("kv_heads"):
        return "llama-gqa"
    return "llama" if given.pop("gated", False) else "gpt"


def from_config(path: Path) -> Transformer:
    """Read a Hugging Face ``config.json`` of a decoder or of BERT.

    Raises:
        UsageError: It cannot be read, or is of another kind.
    """
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return _of_config(config, path)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is no config.json of a transformer ({error})") from None
    except KeyError as error:
        raise UsageError(f"{path} says nothing about {error}; give the numbers: --layers, --hidden, --heads") from None


def _of_config(config: Mapping[str, Any], path: Path) -> Transformer:
    def first(*names: str, default: Any = None) -> Any:
        found = next((config[name] for name in names if config.get(name) is not None), default)
        if found is None:
            raise KeyError(names[0])
        return found

    hidden = first("hidden_size", "n_embd", "d_model")
    heads = first("num_attention_heads", "n_head", "n_heads")
    kind = str(config.get("model_type", ""))
    plain = kind in _PLAIN
    ffn = first("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * hidden)
    experts = first("num_local_experts", "num_experts", "n_routed_experts", default=0)
    moe = first("moe_intermediate_size", default=ffn) if experts else 0
    return Transformer(
        name=str(config.get("_name_or_path") or kind or path.stem),
        layers=first("num_hidden_layers", "n_layer", "n_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=first("num_key_value_heads", "num_kv_heads", default=heads),
        head_dim=first("head_dim", default=hidden // heads),
        ffn=ffn,
        vocab=first("vocab_size"),
        seq=first("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", default=_USUAL_SEQ),
        gated=not plain,
        tied=bool(config.get("tie_word_embeddings", plain)),
        causal=kind not in ("bert", "roberta"),
        experts=experts,
        top_k=first("num_experts_per_tok", default=1) if experts else 0,
        expert_ffn=moe,
        shared_ffn=first("n_shared_experts", default=0) * moe,
        dense_layers=first("first_k_dense_replace", default=0) if experts else 0,
        head_share=0.16 if kind in ("bert", "roberta") else 1.0,
    )


_PLAIN = (
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "bloom",
    "bert",
    "roberta",
    "phi",
    "falcon",
    "mpt",
    "starcoder2",
)
