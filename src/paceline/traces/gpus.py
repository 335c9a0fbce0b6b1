"""Which GPU did what, where one process works on several? Each by itself.

Two GPUs that take turns are not one that is busy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.traces.model import COPY, Capture


def by_gpu(capture: Capture) -> list[Capture]:
    """Return a capture for each GPU on which kernels ran; the capture itself where that is one.

    Which of several a collective belongs to is not told, so they are not matched with those of other ranks.
    """
    if capture.devices is None:
        return [capture]
    kernels = capture.devices[(capture.events.class_ != COPY) & (capture.devices >= 0)]
    if not len(kernels) or (kernels == kernels[0]).all():
        return [capture]
    numbers = np.unique(kernels).tolist()
    told = f"{capture.source}: kernels ran on {len(numbers)} GPUs; each GPU has its own row"
    parts = [_of(capture, number) for number in numbers]
    return [replace(parts[0], problems=[*capture.problems, told]), *parts[1:]]


def _of(capture: Capture, number: int) -> Capture:
    assert capture.devices is not None
    own = capture.devices == number
    return replace(
        capture,
        gpu=capture.device_names.get(number, capture.gpu),
        device=number,
        events=capture.events.where(own),
        devices=capture.devices[own],
        calls=(),
        problems=(),
    )
