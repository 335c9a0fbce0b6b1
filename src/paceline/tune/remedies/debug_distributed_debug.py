"""debug.distributed_debug: the debug checks of collectives are off."""

from __future__ import annotations

from paceline.tune.candidates import debug_is_on
from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
With `TORCH_DISTRIBUTED_DEBUG=DETAIL`, torch compares the arguments of each collective between the ranks before it runs.
If several ranks train and this level is set, `tune` proposes `debug.distributed_debug`.

## Safety class

The safety class is exact: the checks compute nothing that training uses. If two ranks call different collectives, the
program hangs instead of ending with an error.

## What it sets

This remedy sets `debug.distributed_debug = false`.

## How it is confirmed

Paceline records `debug.distributed_debug` as applied when the level was `DETAIL` as torch was imported. The level is
then `INFO`.

## In the source

Unset `TORCH_DISTRIBUTED_DEBUG` in the shell, or set it to `INFO`.
"""

REMEDY = TunableRemedy(
    id="debug.distributed_debug",
    page=PAGE,
    candidates=switch(
        "debug.distributed_debug",
        "debug.distributed_debug",
        False,
        safety="exact",
        why="TORCH_DISTRIBUTED_DEBUG is DETAIL",
        when=lambda context: debug_is_on(context, "distributed_debug"),
    ),
)
