"""What should a PCIe link give? Lanes x transfer rate x line code, and what copies reach of it.

    bytes/s = lanes * transfers/s * (payload bits / line bits) / 8        one direction, before packet headers

Source: PCI Express base specifications 1.0 to 6.0. Headers and flow control take a further share: a copy from
pinned memory reaches about 0.8 of the line rate (12.5 of 15.75 GB/s on 3.0 x16, 25 of 31.5 on 4.0 x16 are the
figures usually published for CUDA's bandwidth test). No GPU was at hand to measure it here.
"""

from __future__ import annotations

COPY_EFFICIENCY = 0.8

_TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
_LINE_CODE = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}


def pcie_bytes_per_s(generation: int, lanes: int) -> float | None:
    """Return the line rate of a link in bytes/s, one direction; None for a generation not known or no lanes."""
    if generation not in _TRANSFERS_PER_S or lanes < 1:
        return None
    return lanes * _TRANSFERS_PER_S[generation] * _LINE_CODE[generation] / 8


def pcie_copy_bytes_per_s(generation: int, lanes: int) -> float | None:
    """Return what a large copy from pinned memory should reach over the link, in bytes/s; None if not known."""
    line = pcie_bytes_per_s(generation, lanes)
    return None if line is None else COPY_EFFICIENCY * line
