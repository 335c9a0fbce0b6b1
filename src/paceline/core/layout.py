"""The layout of the ranks: a size for each parallel axis, such as ``dp=2,shard=4,tp=2,pp=2``.

Ranks are numbered with the last axis fastest, so that the ranks of one tensor-parallel group are neighbours and
are on one machine: rank = (((pp * DP + dp) * SHARD + shard) * CP + cp) * TP + tp.

    dp     replicas; gradients are averaged
    shard  parameters, gradients and optimizer state are split, gathered for each block (FSDP2)
    tp     each matrix is split (tensor parallel)
    pp     layers are split into stages (pipeline)
    cp     the sequence is split (context parallel)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from math import prod

from paceline.core.errors import UsageError, did_you_mean

AXES = ("pp", "dp", "shard", "cp", "tp")  # slowest first
_MOST = 3  # largest number of axes above 1 in one layout
_REFUSED = {
    frozenset({"cp", "pp"}): "a pipeline stage passes whole sequences on",
    frozenset({"cp", "tp"}): "attention heads and the sequence would both be split",
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The number of ranks on each axis; 1 for an axis that is not used."""

    dp: int = 1
    shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1

    @property
    def ranks(self) -> int:
        """The number of processes: the product of all sizes."""
        return prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in the order of `AXES`."""
        return tuple(getattr(self, axis) for axis in AXES)

    @property
    def in_use(self) -> tuple[str, ...]:
        """The names of the axes larger than 1, in the order of `AXES`."""
        return tuple(axis for axis in AXES if getattr(self, axis) > 1)

    @property
    def samples(self) -> int:
        """The number of parts into which the samples of a batch are split."""
        return self.dp * self.shard

    def __str__(self) -> str:
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in self.in_use) or "dp=1"


def parse(text: str) -> Layout:
    """Return the layout for a text such as ``dp=2,tp=4``; an empty text is one process.

    Raises:
        UsageError: An axis is unknown, given twice or not a whole number of 1 or more, or two axes cannot be
            combined.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        axis, size = _part(part, text)
        if axis in sizes:
            raise UsageError(f"layout {text!r}: {axis} is given twice")
        sizes[axis] = size
    layout = Layout(**sizes)
    _check_together(layout)
    return layout


def check_ranks(layout: Layout, ranks: int) -> None:
    """Check that the number of processes is equal to the number of ranks in the layout.

    Raises:
        UsageError: There are more or fewer processes.
    """
    if layout.ranks == ranks:
        return
    needs = " x ".join(f"{axis} {getattr(layout, axis)}" for axis in layout.in_use) or "one process"
    raise UsageError(
        f"layout {layout} takes {layout.ranks} ranks ({needs}), and there are {ranks}; "
        f"start it with `torchrun --nproc-per-node {layout.ranks} SCRIPT`, or give a layout of {ranks} such as "
        f"dp={ranks}"
    )


def _part(part: str, text: str) -> tuple[str, int]:
    """Return the axis and the size in one entry of a layout text, such as ``dp=2``."""
    found = re.fullmatch(r"(\w+)\s*=\s*(\d+)", part)
    if found is None:
        raise UsageError(f"layout {text!r}: {part!r} is not an axis with a size; write dp=2 or dp=2,tp=4")
    axis, size = found[1], int(found[2])
    known = [field.name for field in fields(Layout)]
    if axis not in known:
        hint = did_you_mean(axis, known, otherwise=f"; there are: {', '.join(known)}")
        raise UsageError(f"layout {text!r}: no axis {axis!r}{hint}")
    if size < 1:
        raise UsageError(f"layout {text!r}: {axis}={size} is not allowed; an axis needs at least 1 rank")
    return axis, size


def _check_together(layout: Layout) -> None:
    """Raise a UsageError if too many axes are used, or two axes that cannot be combined."""
    used = set(layout.in_use)
    if len(used) > _MOST:
        raise UsageError(
            f"layout {layout}: {len(used)} axes are in use; at most {_MOST} are checked against one process, so "
            f"leave one out"
        )
    for pair, why in _REFUSED.items():
        if pair <= used:
            raise UsageError(
                f"layout {layout}: {' and '.join(sorted(pair))} cannot be combined ({why}); use only one of them"
            )
