"""DATA006: workers are started again in every epoch."""

from __future__ import annotations

import numpy as np

from paceline.core import units
from paceline.core.statistics import half_width
from paceline.explain import words
from paceline.explain.analysis.loader_model import WORTH, LoaderModel, restarts_s, waiting_rank
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Gain, Remedy
from paceline.explain.rules import Rule
from paceline.record import layout

PAGE = """
## What it means

Worker processes stop at the end of each epoch and start again at the beginning of the next epoch. At each start, the
loader creates the processes, sets up the dataset in each of them, and waits for the first batches. If epochs are short,
starting workers can take most of the time.

## How it is detected

Paceline reports `loader-restart` if the loader stops its workers after each epoch (`persistent_workers=False`, or a new
`DataLoader` in each epoch), and if the first batch of each epoch takes longer than other batches. The time of making
one batch is taken off, because kept workers have to make the first batch of an epoch too. Over at least two epochs, the
remaining extra time of the first batches must be at least 5% of step time.

The expected gain is the speed-up without this extra time, with the 95% confidence interval of its mean over the epochs.

## What helps

- `loader.persistent`: keep the workers between epochs, and create the `DataLoader` once, before the epoch loop. If you
  set `persistent_workers=True` by hand, the shuffled order changes from the second epoch on, because the training
  process draws one random number less per epoch. `paceline tune` keeps the shuffled order.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding DATA006, or None if it does not apply."""
    waiting = waiting_rank(analysis)
    if waiting is None:
        return None
    rank, loader_model = waiting
    share = loader_model.start_s / loader_model.step_s
    restarts = int(((rank.rows["flags"] & layout.FLAG_EPOCH) != 0).sum())
    if rank.loader is None or not rank.loader.workers:
        return None  # threads are not processes that could be kept
    kept = bool(rank.loader.settings.get("persistent_workers"))
    if kept or share < WORTH or restarts < 2:
        return None
    gain, certain = _gain(rank, loader_model)
    change = "use DataLoader(persistent_workers=True), and create it once before the first epoch"
    if rank.loader.settings.get("sampler") == "RandomSampler":
        change += "; by hand, this changes the shuffled order from the second epoch on, and `paceline tune` keeps it"
    safety = words.safety_of_worker_draws(rank.loader)
    return Finding(
        code="DATA006",
        name="loader-restart",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high" if certain else "medium",
        time_share=share,
        gain=gain,
        ranks=[rank.record.rank],
        evidence=_evidence(rank, share, restarts),
        remedies=[Remedy(id="loader.persistent", safety=safety, change=change, gain=gain)],
        summary=f"starting the workers again in each epoch takes {units.percent(share)} of step time",
    )


def _gain(rank: RankAnalysis, loader_model: LoaderModel) -> tuple[Gain, bool]:
    """Return the gain of keeping the workers, and whether its lower end is large enough for a finding."""
    batch_s = 0.0 if rank.loader is None else rank.loader.produce_s / rank.loader.batches
    each = restarts_s(rank, batch_s)
    half = half_width(each)
    per_step = len(each) / len(rank.rows) / loader_model.step_s
    low, high = (min(0.99, max(0.0, float(each.mean()) + sign * half) * per_step) for sign in (-1, 1))
    high = min(high, loader_model.wait_share)
    return Gain(low=1 / (1 - min(low, high)), high=1 / (1 - high)), low >= WORTH


def _evidence(rank: RankAnalysis, share: float, restarts: int) -> list[Evidence]:
    starts = (rank.rows["flags"] & layout.FLAG_EPOCH) != 0
    first = float(np.median(rank.phases["data_wait"][starts]))
    other = float(np.median(rank.phases["data_wait"][~starts])) if (~starts).any() else 0.0
    text = (
        f"the first batch of an epoch takes {units.seconds(first)}, a later batch {units.seconds(other)} (medians; "
        f"the workers were started again {units.count(restarts, 'time')} in {units.count(len(rank.rows), 'step')})"
    )
    return [
        words.share_of_step(share, "starting the workers again in each epoch"),
        Evidence(text=text, value=first, unit="s"),
    ]


RULE = Rule(code="DATA006", name="loader-restart", page=PAGE, check=check)
