"""Finds capture files in folders, and reads each as one capture per rank or per GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.core.errors import UsageError
from paceline.traces.capture import COPY, Capture
from paceline.traces.read import kineto, nsys
from paceline.traces.read.content import NotACapture

_SUFFIXES = (".json", ".json.gz", ".sqlite")


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the given capture files and those in the given folders, ordered by the numbers in their names.

    Raises:
        UsageError: A path does not exist, or a folder contains no capture.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in path.rglob("*") if p.name.endswith(_SUFFIXES) and p.is_file()]
            if not inside:
                raise UsageError(
                    f"{path} contains no capture; the file names of captures end in {', '.join(_SUFFIXES)}"
                )
            found += sorted(inside, key=_natural)
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(f"there is no file or folder {path}; give capture files, or folders that contain captures")
    return list(dict.fromkeys(found))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in paths by value, such as rank 10 after rank 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def captures_of(path: Path) -> list[Capture]:
    """Return the captures in a file: a single one for a rank with one GPU, otherwise one for each GPU.

    Raises:
        NotACapture: The file is not a capture, or nothing of it could be read.
    """
    try:
        export = nsys.is_export(path)
    except OSError as error:
        raise NotACapture(f"{path} cannot be read: {error.strerror or error}") from error
    return nsys.read(path) if export else by_gpu(kineto.read(path))


def by_gpu(capture: Capture) -> list[Capture]:
    """Return one capture for each GPU on which kernels ran; with a single GPU, only the capture itself.

    The profiler does not record to which GPU a collective belongs. With several GPUs, collectives are therefore
    left out.
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
