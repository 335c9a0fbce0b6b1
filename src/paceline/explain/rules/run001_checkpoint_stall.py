"""RUN001: saving checkpoints stops training."""

from __future__ import annotations

import numpy as np

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

Training stops while the program serializes and writes a checkpoint.

## How it is detected

Paceline reports `checkpoint-stall` if `torch.save`, `torch.distributed.checkpoint.save` and the save functions of
safetensors together take at least 5% of step time.

## What helps

- `checkpoint.less_often`: save a checkpoint every few minutes instead of every few steps.
- `checkpoint.async`: copy the training state to host memory, and write it to disk in the background
  (`torch.distributed.checkpoint.async_save`).
"""


def check(facts: Facts) -> Finding | None:
    """Return finding RUN001, or None if it does not apply."""
    share = facts.shares["checkpoint"]
    if share < 0.05:
        return None
    rank = facts.first
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
        gain=gain_of_removing(share, 0.5, 0.95),
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            words.share_of_step(share, "saving checkpoints"),
            Evidence(text=text, value=float(len(slow)), unit="steps"),
        ],
        remedies=[
            Remedy(
                id="checkpoint.async",
                safety="exact",
                change="write checkpoints in the background (torch.distributed.checkpoint.async_save)",
                gain=gain_of_removing(share, 0.5, 0.95),
            ),
            Remedy(
                id="checkpoint.less_often",
                safety="exact",
                change="save a checkpoint every few minutes instead of every few steps",
                gain=gain_of_removing(share, 0.5, 0.95),
            ),
        ],
        summary=f"saving checkpoints stops training for {units.percent(share)} of the time",
    )


RULE = Rule(code="RUN001", name="checkpoint-stall", page=PAGE, check=check)
