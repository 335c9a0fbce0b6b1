"""RUN002: evaluation takes a large share of the run."""

from __future__ import annotations

from paceline.core import units
from paceline.explain import words
from paceline.explain.analysis.gains import at_most, saving, share_of_events
from paceline.explain.analysis.loader import evaluation_loaders
from paceline.explain.analysis.run_analysis import RankAnalysis, RunAnalysis
from paceline.explain.model import Evidence, Finding, Remedy
from paceline.explain.rules import Rule
from paceline.record.run import column

_LEAST_WAITED = 0.02  # least share of step time spent waiting for evaluation batches
_LEFT_OUT = 0.5  # share of evaluations left out

PAGE = """
## What it means

Evaluation takes a large part of the run. Evaluation means forward passes that no backward pass uses, usually without
gradients, and loading the batches of the evaluation.

## How it is detected

Paceline reports `evaluation-heavy` if forward passes of the trained model without gradients, together with loading
their batches, take at least 10% of step time. If a second model that is not trained (a teacher, a frozen encoder) runs
inside a step, its forward passes count as part of the forward phase, not as evaluation.

Forward passes with gradients count as evaluation in two cases: no backward pass follows while the batches come from one
loader; or, without a loader, far more of them than usual precede a backward pass that takes no longer than usual.

The expected gain of evaluating half as often is half of the share of evaluation. Its interval comes from the scatter of
the times of single evaluations. How much faster one evaluation can be is not known, so that gain is assumed.

## What helps

- `evaluation.less_often`: evaluate less often, or on a fixed part of the validation data.
- `evaluation.workers`: load the batches of the evaluation with workers, if its loader has none.
- `evaluation.faster`: evaluate with larger batches, under `torch.inference_mode()`, and with a loader that has workers.
"""


def check(analysis: RunAnalysis) -> Finding | None:
    """Return finding RUN002, or None if it does not apply."""
    share = analysis.shares["evaluation"]
    if share < 0.10:
        return None
    rank = analysis.first
    spent = rank.phases["evaluation"]
    steps, trained = int((column(rank.record.steps, "evaluation_s") > 0).sum()), len(rank.record.steps)
    fetches = sum(int(loader.get("eval_fetches", 0)) for loader in rank.record.summary.get("loaders", ()))
    text = f"the program evaluated after {steps} of {trained} training steps, on {fetches} batches in total"
    return Finding(
        code="RUN002",
        name="evaluation-heavy",
        severity="critical" if share >= 0.4 else "warning",
        confidence="high" if steps >= 3 else "medium",
        time_share=share,
        gain=at_most(share),
        ranks=[r.record.rank for r in analysis.ranks],
        evidence=[
            words.share_of_step(share, "evaluation"),
            Evidence(text=text, value=float(steps), unit="steps"),
        ],
        remedies=[
            Remedy(
                id="evaluation.less_often",
                safety="exact",
                change="evaluate half as often, or on half of the validation data",
                gain=saving(share_of_events(spent[spent > 0], rank.total_s, _LEFT_OUT)),
            ),
            *_workers(rank, share),
            Remedy(
                id="evaluation.faster",
                safety="numeric",
                change="evaluate in larger batches under torch.inference_mode()",
                gain=at_most(share),
            ),
        ],
        summary=f"evaluation takes {units.percent(share)} of the time",
    )


def _workers(rank: RankAnalysis, share: float) -> list[Remedy]:
    """Return the remedy for evaluation loaders without workers, or no remedy if the program hardly waits for them."""
    found = evaluation_loaders(rank.record)
    waited = min(share, sum(one.wait_s for one in found) / max(rank.total_s, 1e-9))
    if not found or waited < _LEAST_WAITED:
        return []
    change = f"load the evaluation batches of {found[0].dataset} with workers"
    return [Remedy(id="evaluation.workers", safety="exact", change=change, gain=at_most(waited))]


RULE = Rule(code="RUN002", name="evaluation-heavy", page=PAGE, check=check)
