"""loader.persistent: workers stay alive between epochs."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain import words
from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

_LEAST = 0.005  # least average share of step time that starting workers takes

PAGE = """
The loader starts its workers once instead of in every epoch. At the start of each epoch, Paceline draws the random
number that torch would draw to start new workers, so the shuffled order stays the same. If the program creates a new
loader in each epoch, the workers cannot be kept. To keep the workers, create the loader before the epoch loop.

Kept workers have a copy of the dataset. If the program has changed its dataset since they were started, for example
with `dataset.set_epoch(epoch)`, Paceline starts new workers for the next epoch.

## Safety class

The safety class is exact if loading samples draws no random numbers. The safety class is resampled if loading samples
draws from the global random number generators of Python, numpy or torch: workers that are kept continue their random
sequence, whereas new workers would get a new seed. The safety class is semantic if the dataset has its own random
number generator.

## What it sets

This remedy sets `loader.persistent_workers = true`.

## How it is confirmed

Paceline records `loader.persistent_workers` as applied when a loader with workers is created with
`persistent_workers=True`.

## In the source

Write `DataLoader(..., persistent_workers=True)`, and create the loader once. The argument `persistent_workers=True`
alone changes the shuffled order from the second epoch on. The patch that `paceline tune --diff` prints keeps the
shuffled order, because the patched code draws the random number that torch would draw to start new workers.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    loader = context.loader
    if loader is None or not loader.workers or loader.settings.get("persistent_workers") or context.streams:
        return []
    restart = context.finding("DATA006")
    if restart is None and context.supply.restart_s < _LEAST * context.supply.step_s:
        return []
    return [
        Candidate(
            remedy="loader.persistent",
            recipe={"loader": {"persistent_workers": True}},
            safety=words.safety_of_worker_draws(loader),
            predicted=restart.gain if restart is not None else _predicted(context),
            why=restart.summary if restart is not None else "workers are started anew in each epoch",
        )
    ]


def _predicted(context: DiagnosisContext) -> Gain:
    """Return the predicted gain, computed from the time of starting workers in each epoch; its lower end is 1."""
    supply = context.supply
    return Gain(low=1.0, high=supply.step_s / max(supply.step_s - supply.restart_s, 1e-9))


REMEDY = TunableRemedy(id="loader.persistent", page=PAGE, candidates=_candidates)
