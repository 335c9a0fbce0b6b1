"""evaluation.workers: workers load the batches of evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.analysis.loader import evaluation_loaders
from paceline.explain.model import Gain
from paceline.tune.candidates import Candidate, DiagnosisContext
from paceline.tune.remedies import TunableRemedy

_MOST_STEPS = 30  # most steps per evaluation: a trial makes few steps, so it would not reach a rarer evaluation
_LEAST = 0.02  # least share of time in which training waits for batches of evaluation
_WAITS = 0.5  # least share of batch preparation in which workers neither compute nor wait for a core
_MORE = 4  # workers per core if the workers mostly wait

PAGE = """
Worker processes load the batches of evaluation. By default, a recipe leaves evaluation loaders as they are, because
starting workers may take longer than a short evaluation. If evaluation loaders without workers take at least 2% of the
time, `tune` proposes as many workers as there are cores, and four times as many if loading mostly waits for storage or
a network. The output names the dataset of the evaluation that takes most of the time. The workers are started for each
evaluation, so `tune` proposes no workers if a single evaluation waits less than 0.3 s. The program must evaluate at
least every 30 steps, because a trial makes few steps and must reach an evaluation.

A loader counts as an evaluation loader if gradients are switched off when its epoch begins, as under `torch.no_grad()`.
The Hugging Face Trainer switches gradients off later, so its evaluation loader is not recognised.

## Safety class

The safety class is exact: evaluation reads the same samples in the same order, and training computes the same numbers.
If samples of the evaluation draw random numbers, `tune` does not propose `evaluation.workers`, because the draws would
no longer come from the random number generator of training.

## What it sets

This remedy sets `loader.evaluation_workers`. The workers are started for each evaluation.

## How it is confirmed

Paceline records `loader.evaluation_workers` as applied when an epoch of evaluation begins with these workers.

## In the source

Write `DataLoader(validation_set, num_workers=2)`.
"""


def _candidates(context: DiagnosisContext) -> Sequence[Candidate]:
    if context.setting("loader", "evaluation_workers") is not None:
        return []
    first = context.facts.first
    found = evaluation_loaders(first.record)
    waited = sum(one.wait_s for one in found) / first.total_s if first.total_s > 0 else 0.0
    share = min(waited, context.facts.shares["evaluation"])
    evaluations = int((first.phases["evaluation"] > 0).sum())
    if not found or share < _LEAST or evaluations * _MOST_STEPS < len(first.rows):
        return []
    slowest = found[0]
    workers = context.cores * (_MORE if slowest.blocked >= _WAITS else 1)
    return [
        Candidate(
            remedy="evaluation.workers",
            recipe={"loader": {"evaluation_workers": workers}},
            safety="exact",
            predicted=Gain(low=1.0, high=1 / max(1 - share, 0.05)),
            why=f"evaluation waits {share:.0%} of the time for batches of {slowest.dataset}, which has no workers",
        )
    ]


REMEDY = TunableRemedy(id="evaluation.workers", page=PAGE, candidates=_candidates)
