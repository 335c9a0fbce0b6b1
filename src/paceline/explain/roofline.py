"""How near is work to what its GPU can do? The roofline: peak of the number format, or bandwidth of the memory."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.hardware.catalogue import Gpu
from paceline.traces.analyze.matrix_products import Product


@dataclass(frozen=True, kw_only=True)
class Roof:
    """What bounds a product, and how near to it the product comes."""

    bound: str  # "compute" or "memory"
    flops_per_s: float  # that the GPU could reach at these shapes
    share: float  # of it that was reached


def roof_of(product: Product, gpu: Gpu) -> Roof | None:
    """Return how near a product comes to its roof; None where the peak of its format is not known.

    Peaks are those of data sheets, dense: some tenths of it are out of reach of any kernel.
    """
    peak, reached = gpu.peak_flops.get(product.format), product.flops_per_s
    if peak is None or reached is None or not product.bytes:
        return None
    by_memory = product.flops / product.bytes * gpu.memory_bytes_per_s
    roof = min(peak, by_memory)
    return Roof(bound="memory" if by_memory < peak else "compute", flops_per_s=roof, share=reached / roof)
