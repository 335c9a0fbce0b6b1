"""debug.deterministic_algorithms: algorithms that are not deterministic are allowed."""

from __future__ import annotations

from paceline.tune.candidates import debug_is_on
from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
With `torch.use_deterministic_algorithms(True)`, torch replaces kernels whose results are rounded differently from run
to run. The deterministic kernels are often slower. If training uses a CUDA device and deterministic algorithms are on,
`tune` proposes `debug.deterministic_algorithms`.

## Safety class

The safety class is numeric: the algorithm is the same, but sums are added in another order. Two runs with the same seed
are then no longer equal to the last bit. If you need equal runs, keep deterministic algorithms on.

## What it sets

This remedy sets `debug.deterministic_algorithms = false`.

## How it is confirmed

Paceline records `debug.deterministic_algorithms` as applied when the program turns deterministic algorithms on, and
they stay off.

## In the source

Remove `torch.use_deterministic_algorithms(True)`. In Lightning, remove `deterministic=True`.
"""

REMEDY = TunableRemedy(
    id="debug.deterministic_algorithms",
    page=PAGE,
    candidates=switch(
        "debug.deterministic_algorithms",
        "debug.deterministic_algorithms",
        False,
        why="deterministic algorithms are on",
        when=lambda context: debug_is_on(context, "deterministic_algorithms"),
    ),
)
