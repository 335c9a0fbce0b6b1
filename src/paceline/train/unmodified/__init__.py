"""Data-parallel training of an unchanged one-process script on several ranks (`docs/how-to/several-gpus.md`).

Every rank runs the whole program and has the same whole batches, outputs and losses as one process. Only two
things are split: the reading of batches, and the forward and backward passes of models. A rank reads its rows of a
batch and receives the other rows from the ranks that read them. Its rows go through the model, and the outputs of all
ranks are gathered. So the loss, the metrics, the evaluation and the checkpoint are those of one process. The recorder
in the program loads this package, because the environment variable ``PACELINE_BESIDE`` names it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.core.layout import Layout

RANK = "PACELINE_RANK"
NOTES = "layout.jsonl"  # in the run's folder; one JSON string a line, each a note about the layout


def command(layout: Layout, program: Sequence[str]) -> list[str]:
    """Return the command that starts the launcher (`ranks.py`), which runs a program once for each rank of a layout."""
    wanted = json.dumps({"ranks": layout.ranks, "layout": str(layout)})
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("ranks.py")), wanted, *program]


def told(folder: Path) -> list[str]:
    """Return the notes about the layout in a run's folder, in order and without duplicates; empty without a file."""
    try:
        lines = (folder / NOTES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(str(json.loads(line)) for line in lines))


def begin() -> None:
    """Prepare a rank before the program starts: seed `random`; redirect file writes of ranks other than 0."""
    place = _place()
    if place is not None:
        with _or_end():
            _begin(place)


def patch(torch: Any) -> None:
    """Patch torch so that this rank trains with the others; child processes of a rank only redirect writes."""
    place = _place()
    if place is not None:
        with _or_end():
            _patch(torch, place)


@contextmanager
def _or_end() -> Iterator[None]:
    """End the process with exit code 3 if Paceline itself fails; the rank would otherwise train alone."""
    try:
        yield
    except Exception as error:
        os.write(2, f"paceline: --layout cannot be applied here ({type(error).__name__}: {error})\n".encode())
        os._exit(3)


def _begin(place: Mapping[str, Any]) -> None:
    if place["rank"]:
        from paceline.inprocess.sandbox import write_sandbox

        scratch = os.path.join(place["folder"], f"written-{place['rank']}")
        os.makedirs(scratch, exist_ok=True)
        write_sandbox.begin(scratch, place["since_s"])
    if os.getppid() == place["launcher"]:
        import random

        from paceline.train.unmodified import commands, listings

        listings.begin(place)
        commands.begin(place)
        random.seed(place["seed"])


def _patch(torch: Any, place: Mapping[str, Any]) -> None:
    if place["rank"]:
        from paceline.inprocess.sandbox import write_sandbox

        write_sandbox.patch(torch)
    if os.getppid() == place["launcher"]:
        import_module(f"{__name__}.spread").begin(torch, place)


def _place() -> Mapping[str, Any] | None:
    given = os.environ.get(RANK)
    return json.loads(given) if given else None
