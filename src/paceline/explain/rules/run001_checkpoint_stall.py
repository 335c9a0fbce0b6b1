"""RUN001: saving checkpoints stops training."""

from __future__ import annotations

import numpy as np

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most, saving, share_of_events
from paceline.explain.analysis.run_analysis import RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

_LEFT_OUT = 0.9  # share of checkpoints left out if one in ten is saved

PAGE = """
## What it means

Training stops while the program serializes and writes a checkpoint.

## How it is detected

Paceline reports `checkpoint-stall` if `torch.save`, `torch.distributed.checkpoint.save` and the save functions of
safetensors together take at least 5% of step time.

If the program saves a tenth as often, the expected gain is the time of nine of ten checkpoints. The interval of the
expected gain comes from the scatter of the times of single checkpoints. How much time a checkpoint in the background
saves is not known, so Paceline assumes that it saves at most all of the time.

## What helps

- `checkpoint.less_often`: save a checkpoint every few minutes instead of every few steps.
- `checkpoint.async`: copy the training state to host memory, and write it to disk in the background
  (`torch.distributed.checkpoint.async_save`).
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN001, or None if it does not apply."""
    share = analysis.shares["checkpoint"]
    if share < 0.05:
        return None
    rank = analysis.first
    slow = rank.phases["checkpoint"][rank.phases["checkpoint"] > 0]
    text = (
        f"{len(slow)} of {len(rank.rows)} steps saved a checkpoint; saving a checkpoint took (median) "
        f"{units.seconds(float(np.median(slow)) if len(slow) else None)}"
    )
    return Finding(
        code="RUN001",
        name="checkpoint-stall",
        severity="critical" if share >= 0.2 else "warning",
        confidence="high" if len(slow) >= 3 else "medium",
        time_share=share,
        gain=at_most(share),
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            words.share_of_step(share, "saving checkpoints"),
            Evidence(text=text, value=float(len(slow)), unit="steps"),
        ],
        remedies=[
            Remedy(
                id="checkpoint.async",
                safety="exact",
                change="write checkpoints in the background (torch.distributed.checkpoint.async_save)",
                gain=at_most(share),
            ),
            Remedy(
                id="checkpoint.less_often",
                safety="exact",
                change="save a checkpoint a tenth as often",
                gain=saving(share_of_events(slow, rank.total_s, _LEFT_OUT)),
            ),
        ],
        summary=f"saving checkpoints stops training for {units.percent(share)} of the time",
    )


RULE = Rule(code="RUN001", name="checkpoint-stall", page=PAGE, check=check)
