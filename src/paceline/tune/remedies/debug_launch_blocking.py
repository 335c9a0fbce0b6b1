"""debug.launch_blocking: the CPU does not wait for each GPU kernel."""

from __future__ import annotations

from paceline.tune.candidates import debug_is_on
from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
With `CUDA_LAUNCH_BLOCKING=1`, the CPU waits for the end of each GPU kernel before it issues the next one. The variable
is meant for finding the kernel that fails. If training uses a CUDA device and the variable is set, `tune` proposes
`debug.launch_blocking`.

## Safety class

The safety class is exact: the same kernels run in the same order.

## What it sets

This remedy sets `debug.launch_blocking = false`.

## How it is confirmed

Paceline checks `debug.launch_blocking` at the first optimizer step. Paceline records the setting as applied if training
runs on a CUDA device, and the program has not set the variable again.

## In the source

Unset `CUDA_LAUNCH_BLOCKING` in the shell, or remove the line that sets it.
"""

REMEDY = TunableRemedy(
    id="debug.launch_blocking",
    page=PAGE,
    candidates=switch(
        "debug.launch_blocking",
        "debug.launch_blocking",
        False,
        safety="exact",
        why="CUDA_LAUNCH_BLOCKING is set",
        when=lambda context: debug_is_on(context, "launch_blocking"),
    ),
)
