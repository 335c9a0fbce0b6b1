"""debug.anomaly_detection: anomaly detection of autograd is off."""

from __future__ import annotations

from paceline.tune.candidates import debug_is_on
from paceline.tune.remedies import TunableRemedy, switch

PAGE = """
Anomaly detection stores a stack trace for each forward operation, and looks for NaN after each backward operation. On
one CPU core and torch 2.13, steps without anomaly detection were 1.14x as fast for large linear layers, 2.0x as fast
for a small transformer, and 6.6x as fast for layers of 64 units. If anomaly detection was on while the program trained,
`tune` proposes `debug.anomaly_detection`.

## Safety class

The safety class is exact: anomaly detection computes nothing that training uses. If a NaN occurs in a backward pass,
the program no longer ends with an error that names the forward operation. `paceline run` reports losses that are NaN
(`CONV001`).

## What it sets

This remedy sets `debug.anomaly_detection = false`.

## How it is confirmed

Paceline records `debug.anomaly_detection` as applied when the program turns anomaly detection on, and it stays off.

## In the source

Remove `torch.autograd.set_detect_anomaly(True)` and `torch.autograd.detect_anomaly()`, or pass `False`. In Lightning,
remove `detect_anomaly=True`.
"""

REMEDY = TunableRemedy(
    id="debug.anomaly_detection",
    page=PAGE,
    candidates=switch(
        "debug.anomaly_detection",
        "debug.anomaly_detection",
        False,
        safety="exact",
        why="anomaly detection is on while the program trains",
        when=lambda context: debug_is_on(context, "anomaly_detection"),
    ),
)
