"""Inside the program: how is a script for one process trained on several ranks? `docs/how-to/several-gpus.md`.

Every rank runs the whole program and sees all that one process would see; only the two things that take time are
split, the reading of batches and the passes through models. A rank reads its rows of a batch, and gets the others'
from the ranks that read them; its part of the rows goes through the model, and the outputs of all parts come back
together. So the loss, the metrics, the evaluation and the checkpoint that the program computes are those of one
process. Loaded by the probe, as ``PACELINE_BESIDE`` names this package.
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
NOTES = "layout.jsonl"  # in the run's folder: what there is to tell of the layout


def command(layout: Layout, program: Sequence[str]) -> list[str]:
    """Return the command that starts a program as the ranks of a layout."""
    wanted = json.dumps({"ranks": layout.ranks, "layout": str(layout)})
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("ranks.py")), wanted, *program]


def told(folder: Path) -> list[str]:
    """Return the notes of all ranks about the layout, without repetitions."""
    try:
        lines = (folder / NOTES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(str(json.loads(line)) for line in lines))


def begin() -> None:
    """Act before the program's first line: what ranks other than 0 write goes elsewhere from there on."""
    place = _place()
    if place is not None:
        with _or_end():
            _begin(place)


def patch(torch: Any) -> None:
    """Spread the program, in the process that is a rank; in those that it starts only what they write matters."""
    place = _place()
    if place is not None:
        with _or_end():
            _patch(torch, place)


@contextmanager
def _or_end() -> Iterator[None]:
    """End the process where a fault of ours would leave a rank that trains alone."""
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
