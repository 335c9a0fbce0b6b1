"""Which model and which machines does a user mean? Numbers, a Hugging Face ``config.json``, a published name; a word.

``64xH100-SXM`` are cards, ``8xp5.48xlarge`` instances of a cloud; a network is ``400gbps`` per node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import Gpu, Instance, find_gpu, find_instance, gpus, instances
from paceline.plan.configs import from_config
from paceline.plan.convnets import convnet
from paceline.plan.machines import card
from paceline.plan.model import ConvNet, Model, Transformer
from paceline.plan.named import named
from paceline.plan.numbers import checked, transformer_from
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
        raise UsageError(f"{text!r} is not a number; write the number like 8b, 350m or 15t")
    return value


def machines(text: str, per_node: int | None, network: str | None, table: Sequence[Instance] | None = None) -> Machines:
    """Read ``64xH100-SXM`` or ``8xp5.48xlarge``, an instance of a price table (None: the one that is shipped).

    Raises:
        UsageError: Neither a card nor an instance is called so, or a number makes no sense.
    """
    found = re.fullmatch(r"(\d+)\s*[x*]\s*(.+)", text.strip())
    count, name = (int(found[1]), found[2]) if found else (1, text.strip())
    if count < 1:
        raise UsageError(f"{text!r} is not a number of GPUs with a GPU name; write it like 8xH100-SXM")
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
        raise UsageError(
            f"the price table has no technical data for {instance.gpu_count:g} x {instance.gpu} of "
            f"{instance.instance_type}"
        )
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
    if instance.gpu.lower() in {each.name.lower() for each in gpus()}:
        return find_gpu(instance.gpu)
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
        raise UsageError(f"{text!r} is not a network speed; write it like 400gbps")
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
        return transformer_from(given, params, given.pop("seq", _USUAL_SEQ))
    if params is not None:
        raise UsageError(
            f"the number of weights of {subject} is already known; leave out --params, or leave out {subject}"
        )
    found = _read(subject, given, image)
    return checked(replace(found, **given)) if isinstance(found, Transformer) else found


def _read(subject: str, given: dict[str, Any], image: int | None) -> Model:
    if ":" in subject:
        from paceline.plan.capture import from_factory

        return from_factory(subject, given.pop("seq", _USUAL_SEQ), image)
    if subject.endswith(".json"):
        return from_config(Path(subject))
    return named(subject) or _network(subject)


def _network(name: str) -> ConvNet:
    try:
        return convnet(name)
    except UsageError:
        raise UsageError(
            f"{name!r} is neither a config.json nor a known model (such as llama-3-8b or resnet-50); "
            "describe the model with options, such as --params 8b --layers 32 --hidden 4096 --heads 32"
        ) from None
