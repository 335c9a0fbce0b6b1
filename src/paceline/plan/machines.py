"""What can a GPU of this kind reach, and what joins it to the others?

Ceilings are measured matrix products where they are published; else the datasheet's peak times what measured ones of
the same maker reach in the middle. A card without a known peak takes the ceiling of its namesake's architecture at its
power: clocks follow the square root of power in the range that matters (P ~ f·V², with V nearly f).
"""

from __future__ import annotations

import math
import re
from statistics import median

from paceline.core.errors import UsageError
from paceline.hardware.catalogue import Gpu, find_gpu, gpus
from paceline.plan.setting import Cluster

# One number format of matrix products per word that configurations use.
FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
SIXTEEN = ("fp16", "bf16")

# Usual adapters of a training node, per GPU and one way, in bytes/s: DGX-1 4 x 100 Gb/s for 8 (but p3dn 100 for 8),
# DGX A100 8 x 200, DGX H100 and B200 8 x 400, B300 8 x 800. Cards without NVLink: one 100 Gb/s adapter for 8.
_NETWORK = {"Volta": 6.25e9, "Ampere": 25e9, "Hopper": 50e9, "Blackwell": 50e9, "Blackwell Ultra": 100e9}
_SINGLE_ADAPTER = 12.5e9 / 8
_PCIE = {3: 12e9, 4: 24e9, 5: 48e9, 6: 96e9}  # bytes/s one way that x16 reaches
_RACK_SCALE = {"GB200": 72, "GB300": 72}  # GPUs that one NVLink network joins

_NAMES = {gpu.name.lower() for gpu in gpus()}
_USUAL_FORMS = {"gh200": "gh200-96gb", "gb200": "gb200", "gb300": "gb300", "a6000": "rtx-a6000"}


def ceiling(gpu: Gpu, number_format: str) -> float:
    """Return the fastest matrix product of a format, in FLOP/s.

    Raises:
        UsageError: The card has no such format, or nothing is known about it.
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
    """GPUs that the fast links join: those of a node, or of a rack where NVLink spans it."""
    return max(cluster.per_node, _RACK_SCALE.get(cluster.gpu.name, 1))


def link_bytes_per_s(gpu: Gpu) -> float:
    """What one GPU sends to its neighbours inside the domain, one way."""
    return gpu.nvlink_bytes_per_s / 2 if gpu.nvlink_bytes_per_s else _PCIE[gpu.pcie_generation]


def network_bytes_per_s(cluster: Cluster) -> float:
    """What one GPU's share of the node's adapters sends, one way."""
    if cluster.network_bytes_per_s is not None:
        return cluster.network_bytes_per_s / cluster.per_node
    return (
        _NETWORK.get(cluster.gpu.architecture, _SINGLE_ADAPTER) if cluster.gpu.nvlink_bytes_per_s else _SINGLE_ADAPTER
    )


def card(name: str, memory_gb: float | None = None) -> Gpu:
    """Return the card that a name means: ``V100-SXM2`` of 16 GB, ``A100``, ``H100 80GB``, ``GB200 NVL72``.

    Raises:
        UsageError: None is called so.
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
