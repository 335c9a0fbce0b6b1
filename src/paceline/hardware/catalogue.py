"""The data tables of GPUs and cloud instances, as frozen rows.

data/SOURCES.md gives the source of each figure and lists the figures that still need a check.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from paceline.core.errors import UsageError, nearest
from paceline.core.units import money

_FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")

# Product names as NVML gives them, without "NVIDIA ", "Tesla " and "GeForce " (see `_bare`). Only full names match: an
# H100 NVL, a laptop RTX, a MIG slice or a vGPU profile differs from the card with a similar name.
_NVML_NAMES = {
    "V100-SXM2-16GB": "V100-16GB-SXM2",
    "V100-SXM2-32GB": "V100-32GB-SXM2",
    "V100-PCIE-32GB": "V100-32GB-PCIe",
    "T4": "T4",
    "P100-SXM2-16GB": "P100-SXM2",
    "A10": "A10",
    "A10G": "A10G",
    "L4": "L4",
    "L40S": "L40S",
    "RTX 3090": "RTX3090",
    "RTX 4090": "RTX4090",
    "RTX 5090": "RTX5090",
    "RTX A6000": "RTX-A6000",
    "A100-PCIE-40GB": "A100-40GB-PCIe",
    "A100 80GB PCIE": "A100-80GB-PCIe",
    "A100-PCIE-80GB": "A100-80GB-PCIe",
    "A100-SXM4-40GB": "A100-40GB-SXM",
    "A100-SXM4-80GB": "A100-80GB-SXM",
    "A100-SXM-80GB": "A100-80GB-SXM",
    "H100 PCIE": "H100-PCIe",
    "H100 80GB HBM3": "H100-SXM",
    "H800": "H800-SXM",
    "H200": "H200-SXM",
    "GH200 480GB": "GH200-96GB",
    "GH200 144G HBM3E": "GH200-144GB",
    "B200": "B200-SXM",
    "GB200": "GB200",
    "B300 SXM6 AC": "B300-SXM",
    "GB300": "GB300",
    "MI300X": "MI300X",
    "MI325X": "MI325X",
    "MI355X": "MI355X",
}  # a device of an MI250 or MI250X is half of a card, so their names are left out


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator.

    `peak_flops` has the peak for dense matrices in FLOP/s, by number format. A format that the accelerator lacks, or
    whose peak is unknown, is absent.
    """

    name: str
    architecture: str
    year: int
    memory_gb: float  # as in the vendor's product name
    memory_bytes_per_s: float
    peak_flops: Mapping[str, float]
    measured_bf16_flops: float | None  # the fastest published matrix product
    measured_fp8_flops: float | None
    nvlink_bytes_per_s: float | None  # sum over all links and both directions; 0.0 if the card has no NVLink
    pcie_generation: int
    power_w: float
    verified: str  # "repo": checked against a source; "memory": not checked
    notes: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One cloud instance in one region. Prices are in USD per hour. They become outdated: show `price_source` too."""

    provider: str
    instance_type: str
    region: str
    gpu: str  # the provider's name of the GPU
    gpu_count: float  # less than one if the instance has only a part of a GPU
    gpu_memory_bytes: float
    vcpus: int
    memory_bytes: float
    on_demand_usd_h: float | None
    spot_usd_h: float | None
    interruption_band: str  # from the AWS spot advisor, June 2025; "" if it has none
    price_source: str  # source and date, or commit
    spot_source: str


@cache
def gpus() -> tuple[Gpu, ...]:
    """Return all accelerators, in the order of the table."""
    return tuple(_gpu(row) for row in _rows("gpus.csv"))


@cache
def instances() -> tuple[Instance, ...]:
    """Return all instances, in the order of the table."""
    return tuple(_instance(row) for row in _rows("instances.csv"))


def read_instances(path: Path) -> tuple[Instance, ...]:
    """Read a user's price table, with columns as in data/instances.csv; most of the columns may be missing.

    Raises:
        UsageError: The file cannot be read, a required column is missing, or a figure is not a number above zero.
    """
    try:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is not a price table ({error})") from None
    return tuple(_own(path, line, row) for line, row in enumerate(rows, start=2))


_OWN = {  # columns that a user's price table may leave out, with their default values
    **dict.fromkeys(("region", "spot_usd_h", "interruption_band_2025_06", "spot_source"), ""),
    "price_source": "your own price table, which names no source",
    **dict.fromkeys(("vcpus", "mem_gib"), "0"),
    "on_demand_usd_h": "",
    "provider": "own",
}


def _own(path: Path, line: int, row: Mapping[str, str | None]) -> Instance:
    given = {name: value.strip() for name, value in row.items() if name and isinstance(value, str) and value.strip()}
    try:
        if "vram_mib_per_gpu" not in given:
            given["vram_mib_per_gpu"] = str(find_gpu(given["gpu"]).memory_gb * 1024)
        instance = _instance({**_OWN, **given})
    except ValueError as error:
        raise UsageError(f"line {line} of {path} contains a value that is not a number ({error})") from None
    except KeyError as error:
        raise UsageError(
            f"{path} has no column {error}; docs/reference/cli.md lists the columns of a price table"
        ) from None
    sizes = {"gpu_count": instance.gpu_count, "vram_mib_per_gpu": instance.gpu_memory_bytes}
    prices = {"on_demand_usd_h": instance.on_demand_usd_h, "spot_usd_h": instance.spot_usd_h}
    for name, value in {**sizes, **prices}.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"line {line} of {path}: {name} is {given.get(name)!r}; give a number above zero")
    return instance


def find_instance(name: str, table: Sequence[Instance] | None = None) -> Instance:
    """Return the instance with this name, such as ``p5.48xlarge`` or ``aws/p5.48xlarge``; case does not matter.

    Args:
        name: The name of the instance, with or without its provider.
        table: The instances to search; None for the table that Paceline ships.

    Raises:
        UsageError: No instance has this name. The message gives the most similar names, and --price as an alternative.
    """
    known = instances() if table is None else table
    by_name = {key: each for each in known for key in (each.instance_type.lower(), _qualified(each).lower())}
    found = by_name.get(name.strip().lower())
    if found is not None:
        return found
    near = nearest(name.strip().lower(), by_name, 3, 0.4)
    raise UsageError(_unknown_instance(name, [by_name[each] for each in near]))


def find_gpu(name: str) -> Gpu:
    """Return the accelerator with this name in the table, such as ``H100-SXM``; case does not matter.

    Raises:
        UsageError: No accelerator has this name. The message gives the most similar names.
    """
    by_name = {gpu.name.lower(): gpu for gpu in gpus()}
    found = by_name.get(name.strip().lower())
    if found is not None:
        return found
    near = nearest(name.strip().lower(), by_name, 3, 0.4)
    choices = ", ".join(by_name[each].name for each in near) or ", ".join(gpu.name for gpu in gpus())
    raise UsageError(f"no GPU is called {name!r}; the nearest are {choices}")


def match_gpu(nvml_name: str) -> Gpu | None:
    """Return the table row for a product name from NVML, such as ``Tesla T4``; None if no row matches for certain."""
    row = _NVML_NAMES.get(_bare(nvml_name))
    return next((gpu for gpu in gpus() if gpu.name == row), None)


def _bare(nvml_name: str) -> str:
    name = " ".join(nvml_name.upper().split())
    for maker in ("NVIDIA ", "TESLA ", "GEFORCE ", "AMD ", "INSTINCT "):
        name = name.removeprefix(maker)
    for board in (" OAM", " VF"):  # suffixes of AMD's modules and of AMD GPUs in a virtual machine
        name = name.removesuffix(board)
    return name


def _unknown_instance(name: str, near: list[Instance]) -> str:
    choices = ", ".join(dict.fromkeys(_priced(each) for each in near))
    hint = f"the nearest are {choices}" if near else f"{len(instances())} instances are known, such as aws/p5.48xlarge"
    return f"no instance is called {name!r}; {hint}; give one of these names, or the price per hour with --price USD"


def _priced(instance: Instance) -> str:
    source = instance.price_source.partition(";")[0]
    return f"{_qualified(instance)} ({money(instance.on_demand_usd_h)}/h, {source})"


def _qualified(instance: Instance) -> str:
    return f"{instance.provider}/{instance.instance_type}"


def _rows(file: str) -> list[dict[str, str]]:
    text = resources.files("paceline.hardware").joinpath("data", file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _gpu(row: Mapping[str, str]) -> Gpu:
    peaks = {each: _scaled(row[f"{each}_tflops"], 1e12) for each in _FORMATS}
    return Gpu(
        name=row["gpu"],
        architecture=row["arch"],
        year=int(row["year"]),
        memory_gb=float(row["mem_gb"]),
        memory_bytes_per_s=float(row["mem_bw_gbs"]) * 1e9,
        peak_flops={each: peak for each, peak in peaks.items() if peak is not None},
        measured_bf16_flops=_scaled(row["measured_max_matmul_bf16_tflops"], 1e12),
        measured_fp8_flops=_scaled(row["measured_max_matmul_fp8_tflops"], 1e12),
        nvlink_bytes_per_s=_scaled(row["nvlink_total_gbs"], 1e9),
        pcie_generation=int(row["pcie_gen"]),
        power_w=float(row["tdp_w"]),
        verified=row["verified"],
        notes=row["notes"],
    )


def _instance(row: Mapping[str, str]) -> Instance:
    return Instance(
        provider=row["provider"],
        instance_type=row["instance_type"],
        region=row["region"],
        gpu=row["gpu"],
        gpu_count=float(row["gpu_count"]),
        gpu_memory_bytes=float(row["vram_mib_per_gpu"]) * 2**20,
        vcpus=int(row["vcpus"]),
        memory_bytes=float(row["mem_gib"]) * 2**30,
        on_demand_usd_h=_scaled(row["on_demand_usd_h"], 1.0),
        spot_usd_h=_scaled(row["spot_usd_h"], 1.0),
        interruption_band=row["interruption_band_2025_06"],
        price_source=row["price_source"],
        spot_source=row["spot_source"],
    )


def _scaled(text: str, factor: float) -> float | None:
    return float(text) * factor if text else None
