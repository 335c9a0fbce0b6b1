"""GPUs and clusters: reachable FLOP/s, links, and the machines that a user names.

The reachable FLOP/s are those of published measurements of matrix products. Without measurements, they are the peak of
the data sheet times the median ratio of measured to peak FLOP/s for GPUs of the same maker. Without a known peak, they
follow from another GPU of the architecture and the power limits: clocks follow the square root of power in the relevant
range (P ~ f·V², V nearly proportional to f).

Users name GPUs (``64xH100-SXM``) or cloud instances (``8xp5.48xlarge``), and a network speed per node (``400gbps``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import Gpu, Instance, find_gpu, find_instance, gpus, instances
from paceline.plan.cost.case import Cluster

# One number format of matrix products per word that configurations use.
FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
# Bytes of a tensor element that is kept for the backward pass; products below 16 bits keep 16-bit inputs.
ELEMENT_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0, "fp4": 2.0}
SIXTEEN = ("fp16", "bf16")

# Usual adapters of a training node, per GPU and one way, in bytes/s: DGX-1 4 x 100 Gb/s for 8 (but p3dn 100 for 8),
# DGX A100 8 x 200, DGX H100 and B200 8 x 400, B300 8 x 800. Cards without NVLink: one 100 Gb/s adapter for 8.
_NETWORK = {"Volta": 6.25e9, "Ampere": 25e9, "Hopper": 50e9, "Blackwell": 50e9, "Blackwell Ultra": 100e9}
_SINGLE_ADAPTER = 12.5e9 / 8
_PCIE = {3: 12e9, 4: 24e9, 5: 48e9, 6: 96e9}  # bytes/s of x16, one way
_RACK_SCALE = {"GB200": 72, "GB300": 72}  # GPUs that one NVLink network joins

_NAMES = {gpu.name.lower() for gpu in gpus()}
_USUAL_FORMS = {"gh200": "gh200-96gb", "gb200": "gb200", "gb300": "gb300", "a6000": "rtx-a6000"}


def ceiling(gpu: Gpu, number_format: str) -> float:
    """Return the FLOP/s of the fastest matrix product in a number format.

    Raises:
        UsageError: The GPU does not support the format, or its rate is unknown.
    """
    measured = {"bf16": gpu.measured_bf16_flops, "fp16": gpu.measured_bf16_flops, "fp8": gpu.measured_fp8_flops}
    known = measured.get(number_format)
    if known is not None:
        return known
    if not gpu.peak_flops:
        return _by_power(gpu, number_format)
    peak = gpu.peak_flops.get(number_format)
    if peak is None:
        raise UsageError(f"{gpu.name} does not support {number_format}; it supports {', '.join(gpu.peak_flops)}")
    return peak * (1.0 if number_format == "fp32" else _usual_share(gpu))


def _usual_share(gpu: Gpu) -> float:
    maker = gpu.architecture.startswith("CDNA")
    shares = [
        each.measured_bf16_flops / each.peak_flops["bf16"]
        for each in gpus()
        if each.measured_bf16_flops and "bf16" in each.peak_flops and each.architecture.startswith("CDNA") == maker
    ]
    return median(shares)


def _by_power(gpu: Gpu, number_format: str) -> float:
    kin = [each for each in gpus() if each.architecture == gpu.architecture and each.peak_flops]
    if not kin:
        raise UsageError(
            f"the peak FLOP/s of {gpu.name} are unknown, and so are those of its architecture {gpu.architecture}"
        )
    nearest = max(kin, key=lambda each: (each.measured_fp8_flops is not None, -abs(each.power_w - gpu.power_w)))
    return ceiling(nearest, number_format) * min(1.0, math.sqrt(gpu.power_w / nearest.power_w))


def domain(cluster: Cluster) -> int:
    """Return the number of GPUs that fast links join: those of a node, or of a rack if NVLink covers the rack."""
    return max(cluster.per_node, _RACK_SCALE.get(cluster.gpu.name, 1))


def link_bytes_per_s(gpu: Gpu) -> float:
    """Return the bandwidth in bytes/s from one GPU to its neighbours in the domain of fast links, one way."""
    return gpu.nvlink_bytes_per_s / 2 if gpu.nvlink_bytes_per_s else _PCIE[gpu.pcie_generation]


def network_bytes_per_s(cluster: Cluster) -> float:
    """Return the bandwidth in bytes/s of the node's network adapters for each GPU, one way."""
    if cluster.network_bytes_per_s is not None:
        return cluster.network_bytes_per_s / cluster.per_node
    return (
        _NETWORK.get(cluster.gpu.architecture, _SINGLE_ADAPTER) if cluster.gpu.nvlink_bytes_per_s else _SINGLE_ADAPTER
    )


def gpu_named(name: str, memory_gb: float | None = None) -> Gpu:
    """Return the GPU for a name such as ``V100-SXM2``, ``A100``, ``H100 80GB`` or ``GB200 NVL72``.

    Raises:
        UsageError: No GPU has this name.
    """
    plain = name.lower().removeprefix("nvidia ").removeprefix("amd ").replace(" ", "-")
    kind = re.match(r"(v100|a100|h100|h200|h800|gh200|gb200|gb300|b200|b300|a6000)(?![0-9])", plain)
    if kind is None or plain in _NAMES:
        return find_gpu(plain)
    form = "pcie" if "pcie" in plain else "sxm"
    said = re.search(r"(\d+)gb", plain)
    size = float(said[1]) if said else memory_gb
    if kind[1] == "v100":
        return find_gpu(f"v100-{16 if size == 16 else 32}gb-{'pcie' if form == 'pcie' else 'sxm2'}")
    if kind[1] == "a100":
        return find_gpu(f"a100-{40 if size == 40 else 80}gb-{form}")
    if kind[1] == "h100":
        return find_gpu("h100-pcie" if form == "pcie" else "h100-96gb-hbm2e-500w" if "hbm2e" in plain else "h100-sxm")
    return find_gpu(_USUAL_FORMS.get(kind[1], f"{kind[1]}-sxm"))


# GPU names of clouds, by memory in GiB (within a tenth); other GPUs are not supported.
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
    """A cluster, and its cloud instance type if the cluster is rented."""

    cluster: Cluster
    instance: Instance | None = None

    @property
    def usd_per_hour(self) -> float | None:
        """Return the on-demand price of the whole cluster in US dollars per hour; None if unknown."""
        if self.instance is None or self.instance.on_demand_usd_h is None:
            return None
        return self.instance.on_demand_usd_h * self.cluster.nodes

    @property
    def name(self) -> str:
        """Return a short description of the machines."""
        if self.instance is None:
            return f"{self.cluster.count} x {self.cluster.gpu.name}"
        return f"{self.cluster.nodes} x {self.instance.provider}/{self.instance.instance_type}"


def parse_machines(
    text: str, per_node: int | None, network: str | None, table: Sequence[Instance] | None = None
) -> Machines:
    """Return the machines for a text such as ``64xH100-SXM`` or ``8xp5.48xlarge``.

    Args:
        text: A count and the name of a GPU or cloud instance.
        per_node: GPUs per node; None for the usual number.
        network: Network speed per node, such as ``400gbps``; None for the usual network.
        table: Price table with the instances; None for the built-in table.

    Raises:
        UsageError: No GPU or instance has this name, or a number is invalid.
    """
    found = re.fullmatch(r"(\d+)\s*[x*]\s*(.+)", text.strip())
    count, name = (int(found[1]), found[2]) if found else (1, text.strip())
    if count < 1:
        raise UsageError(f"{text!r} is not a number of GPUs with a GPU name; write it like 8xH100-SXM")
    speed = None if network is None else parse_network(network)
    known = instances() if table is None else table
    if name.lower().rpartition("/")[2] in {each.instance_type.lower() for each in known}:
        return machines_of_instance(find_instance(name, known), count, speed)
    gpu = gpu_named(name)
    return Machines(
        cluster=Cluster(gpu=gpu, count=count, per_node=min(per_node or 8, count), network_bytes_per_s=speed)
    )


def machines_of_instance(instance: Instance, count: int, network: float | None = None) -> Machines:
    """Return a cluster of cloud instances.

    Args:
        instance: The instance type.
        count: Number of instances.
        network: Bandwidth per node in bytes/s; None for the usual bandwidth of nodes with this GPU.

    Raises:
        UsageError: The GPU is unknown, or the instance has only a share of a GPU.
    """
    gpu = gpu_of_instance(instance)
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


def gpu_of_instance(instance: Instance) -> Gpu | None:
    """Return the GPU of an instance; None if the table of GPUs does not have it."""
    gib = instance.gpu_memory_bytes / 2**30
    if instance.gpu.lower() in {each.name.lower() for each in gpus()}:
        return find_gpu(instance.gpu)
    for (name, memory), row in _CLOUD_NAMES.items():
        if name == instance.gpu and abs(gib - memory) < 0.1 * memory:
            return find_gpu(row)
    return None


def parse_network(text: str) -> float:
    """Read the network speed of a node, such as ``400gbps``, as bytes/s one way.

    Raises:
        UsageError: The text is not a speed above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(g|t)b(?:ps|/s|it/s)", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise UsageError(f"{text!r} is not a network speed; write it like 400gbps")
    return float(found[1]) * (1e9 if found[2] == "g" else 1e12) / 8
