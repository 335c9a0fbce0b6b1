"""RUN002: evaluation takes a large share."""

from __future__ import annotations

from paceline import units
from paceline.explain import words
from paceline.explain.facts import Facts, gain_of_removing
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule

PAGE = """
## What it means

Evaluation takes a large part of the run. Evaluation means forward passes without gradients, and loading the batches of
the evaluation.

## How it is detected

Paceline reports `evaluation-heavy` if forward passes of the trained model without gradients, together with loading
their batches, take at least 10% of step time. If a second model that is not trained (a teacher, a frozen encoder) runs
inside a step, its forward passes count as part of the forward phase, not as evaluation.

## What helps

- `evaluation.less_often`: evaluate less often, or on a fixed part of the validation data.
- `evaluation.faster`: evaluate with larger batches, under `torch.inference_mode()`, and with a loader that has workers.
"""


def check(facts: Facts) -> Finding | None:
    """Return finding RUN002, or None if it does not apply."""
    share = facts.shares["evaluation"]
    if share < 0.10:
        return None
    rank = facts.first
    steps = int((rank.phases["evaluation"] > 0).sum())
    fetches = sum(int(loader.get("eval_fetches", 0)) for loader in rank.record.summary.get("loaders", ()))
    text = f"the program evaluated after {steps} of {len(rank.rows)} training steps, on {fetches} batches in total"
    return Finding(
        code="RUN002",
        name="evaluation-heavy",
        severity="critical" if share >= 0.4 else "warning",
        confidence="high" if steps >= 3 else "medium",
        time_share=share,
        gain=gain_of_removing(share, 0.5, 0.9),
        ranks=[r.record.rank for r in facts.ranks],
        evidence=[
            words.share_of_step(share, "evaluation"),
            Evidence(text=text, value=float(steps), unit="steps"),
        ],
        remedies=[
            Remedy(
                id="evaluation.less_often",
                safety="exact",
                change="evaluate less often, or on a fixed part of the validation data",
                gain=gain_of_removing(share, 0.5, 0.9),
            ),
            Remedy(
                id="evaluation.faster",
                safety="numeric",
                change="evaluate in larger batches under torch.inference_mode()",
                gain=gain_of_removing(share, 0.1, 0.5),
            ),
        ],
        summary=f"evaluation takes {units.percent(share)} of the time",
    )


RULE = Rule(code="RUN002", name="evaluation-heavy", page=PAGE, check=check)
