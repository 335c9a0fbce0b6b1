"""Checks of ``--layout`` before an unchanged script is started: its axes, the recipe, and the number of GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.layout import AXES, Layout
from paceline.train.unmodified import command

_AXES = ("dp", "shard")
_NOT_WITH = {
    "memory.micro_batches": "it splits batches too",
    "memory.activation_budget": "it weighs whole batches",
    "loader.threads": "threads draw random numbers in an order that ranks cannot share",
    "loader.device_prefetch": "the samples of other ranks are added after the copy",
    "optimizer.state_8bit": "the 8-bit optimizer state cannot be sharded",
}
_GPUS = Path("/proc/driver/nvidia/gpus")  # lists all GPUs, including those that this container or job may not use
_DEVICES = Path("/dev")


def check_axes(text: str) -> None:
    """Check that each part of a layout is written as a known axis and a size, such as ``dp=2``.

    Raises:
        UsageError: An axis is unknown, or a size is not a whole number.
    """
    for part in filter(None, (part.strip() for part in text.split(","))):
        axis = part.partition("=")[0].strip()
        if axis not in (*_AXES, *AXES):
            raise UsageError(
                f"--layout {text}: there is no axis {axis!r}; the axes are {' and '.join(_AXES)}: "
                "give dp=2, shard=2 or dp=2,shard=2"
            )
        if not part.partition("=")[2].strip().isdigit():
            raise UsageError(f"--layout {text}: {part!r} gives no size; write dp=2, shard=2 or dp=2,shard=2")


def checked(layout: Layout) -> Layout:
    """Return the layout unchanged if an unchanged script can be trained with it.

    Raises:
        UsageError: The layout has other axes than dp and shard, or only one rank.
    """
    others = [axis for axis in layout.in_use if axis not in _AXES]
    if others:
        raise UsageError(
            f"--layout {layout}: {' and '.join(others)} cannot be applied to an unchanged script; give dp=2, shard=2 "
            "or dp=2,shard=2, or write the loop with paceline.train, which has all axes (docs/how-to/train.md)"
        )
    if layout.ranks == 1:
        raise UsageError("--layout dp=1 is one process; give dp=2 or shard=2, or leave out --layout")
    return layout


def check_goes_with(layout: Layout, recipe: Mapping[str, Mapping[str, Any]], *, any_command: bool) -> None:
    """Check that a layout can be combined with a recipe, a command and the GPUs of this machine.

    Args:
        layout: The checked layout.
        recipe: Tables of settings, such as ``{"memory": {"micro_batches": 2}}``.
        any_command: Whether the program was given as a command after ``--`` instead of a script.

    Raises:
        UsageError: The program is a command, a setting excludes layouts, or there are fewer GPUs than ranks.
    """
    if any_command:
        raise UsageError(
            f"--layout {layout} starts the ranks itself, so it needs a script instead of a command after `--`; type "
            f"`paceline run --layout {layout} train.py`, or leave out --layout if the command starts ranks itself"
        )
    for table, settings in recipe.items():
        for key in settings:
            if f"{table}.{key}" in _NOT_WITH:
                raise UsageError(
                    f"{table}.{key} of the recipe cannot be combined with --layout {layout}: "
                    f"{_NOT_WITH[f'{table}.{key}']}; "
                    "leave one out"
                )
    _check_gpus(layout)


def _usable_gpus() -> int:
    """Return the number of GPUs whose device file this process can open."""
    return sum(map(_may_open, _GPUS.iterdir())) if _GPUS.is_dir() else 0


def _may_open(gpu: Path) -> bool:
    """Return whether this process can open a GPU's device file, which containers can lack and Slurm can forbid."""
    try:
        lines = (gpu / "information").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return True
    number = next((line.partition(":")[2].strip() for line in lines if line.startswith("Device Minor")), None)
    if number is None:
        return True  # an old driver does not tell the number
    try:
        os.close(os.open(_DEVICES / f"nvidia{number}", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _check_gpus(layout: Layout) -> None:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = _usable_gpus()
    seen = (
        there
        if given is None
        else min(there, len([each for each in given.split(",") if each.strip() not in ("", "-1")]))
    )
    if 0 < seen < layout.ranks:
        raise UsageError(
            f"--layout {layout} takes {layout.ranks} GPUs, and there are {seen}; give dp={seen}"
            + (", or CUDA_VISIBLE_DEVICES= to train on the CPU" if given is None else "")
        )


def spread(layout: Layout, program: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that train a program with a layout.

    Args:
        layout: The checked layout.
        program: The command of the program in one process.
        environment: The variables to add for one process; ``PACELINE_BESIDE`` is extended by this package.
    """
    beside = [environment["PACELINE_BESIDE"]] if "PACELINE_BESIDE" in environment else []
    name = __name__.rpartition(".")[0]
    return command(layout, program), {**environment, "PACELINE_BESIDE": ",".join([name, *beside])}
