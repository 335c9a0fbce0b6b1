"""Results of tuning as searches make them, for the tests of their reports and for looking at them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace

from tests.report import sample

from paceline.core.statistics import Interval
from paceline.explain.model import Gain
from paceline.tune.comparison.model import StepTimes
from paceline.tune.equivalence.outputs import Check
from paceline.tune.search.batch_size import BatchSize, BatchStudy
from paceline.tune.search.quality import Quality, SeedTimes
from paceline.tune.search.result import Trial, TuneResult

WAITS = sample.spread(0.85, 0.0, 0.059, 0.072, 0.008, 0.0, 0.0, 0.0, 0.011)
AFTER = sample.spread(0.31, 0.0, 0.29, 0.27, 0.07, 0.0, 0.0, 0.0, 0.06)
PROGRAM = "train.py --epochs 6 --data ~/photos"
NEXT = f"paceline run --recipe recipe.toml {PROGRAM}"
DIFF = """\
--- a/train.py
+++ b/train.py
@@ -31,7 +31,9 @@ def main():
     model = Net()
-    loader = DataLoader(Photos(root), batch_size=32, shuffle=True, num_workers=2)
+    loader = DataLoader(
+\tPhotos(root), batch_size=32, shuffle=True, num_workers=14, persistent_workers=True, prefetch_factor=4)
     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
PROOF = (
    Check(name="steps", passed=True, text="25 optimizer steps applied, 25 in the baseline"),
    Check(name="samples", passed=True, text="the same inputs in 25 forward passes, bitwise identical"),
    Check(name="losses", passed=True, text="the same losses, bitwise identical"),
    Check(name="parameters", passed=True, text="the same parameters, bitwise identical"),
)
BROKEN = (
    Check(name="samples", passed=False, text="the inputs differ from forward pass 12 on"),
    Check(
        name="losses", passed=False, text="losses differ by 0.031 on average over 12 steps; at most 0.0021 is allowed"
    ),
)


def gain(low: float, high: float) -> Gain:
    return Gain(low=low, high=high)


def factor(value: float, low: float, high: float, pairs: int = 24) -> Interval:
    return Interval(value=value, low=low, high=high, count=pairs)


def trial(number: int, remedy: str, recipe: Mapping[str, Mapping[str, object]], **known: object) -> Trial:
    values: dict[str, object] = {
        "safety": "exact",
        "predicted": None,
        "predicted_by_findings": None,
        "speedup": None,
        "status": "no-win",
        "reason": "the gain is certainly below 2%",
        "rounds": 2 if "speedup" in known else 0,
        "seconds": 31.4,
        **known,
    }
    return Trial(id=str(number), remedy=remedy, recipe=recipe, **values)  # type: ignore[arg-type]


WORKERS = {"loader": {"num_workers": 14, "persistent_workers": True}}
MORE = {"loader": {"num_workers": 28, "persistent_workers": True}}
QUICKER = {"loader": {"num_workers": 28, "persistent_workers": True, "prefetch_factor": 8}}
THREADS = {"loader": {"num_workers": 0, "threads": 8}}
ROUNDED = {**MORE, "precision": {"autocast": "bf16"}}
COMPILED = {**MORE, "compute": {"compile": "default"}}

TRIALS = (
    trial(
        1,
        "loader.workers",
        WORKERS,
        predicted=gain(3.1, 6.6),
        predicted_by_findings=gain(2.4, 5.8),
        speedup=factor(7.36, 4.38, 13.44, 4),
        status="kept",
        reason="gain proven",
        checks=PROOF,
        cpu_ratio=0.94,
    ),
    trial(
        2,
        "loader.workers",
        MORE,
        predicted=gain(1.05, 1.6),
        predicted_by_findings=gain(1.05, 1.6),
        speedup=factor(1.2, 1.01, 1.39, 29),
        status="kept",
        reason="gain proven",
        checks=PROOF,
        saving=factor(0.82, 0.8, 0.84, 29),
        set_aside=3,
        cpu_ratio=1.02,
    ),
    trial(
        3,
        "loader.prefetch",
        QUICKER,
        predicted=gain(0.99, 1.15),
        predicted_by_findings=gain(1.0, 1.3),
        speedup=factor(1.0, 0.97, 1.015, 31),
        reason="the gain is certainly below 2%",
    ),
    trial(
        4,
        "loader.threads",
        THREADS,
        predicted=gain(1.1, 2.2),
        predicted_by_findings=gain(1.1, 2.2),
        speedup=factor(1.31, 1.22, 1.4, 12),
        status="unsafe",
        reason="the inputs differ from forward pass 12 on",
        checks=BROKEN,
    ),
    trial(
        5,
        "precision.autocast",
        ROUNDED,
        safety="numeric",
        speedup=factor(0.71, 0.66, 0.75, 8),
        reason="the gain is certainly below 2%",
    ),
    trial(
        6,
        "compute.compile",
        COMPILED,
        safety="numeric",
        predicted=gain(1.02, 1.3),
        predicted_by_findings=gain(1.02, 1.3),
        status="failed",
        reason="compute.compile had no effect: `torch.compile` needs a C compiler, and none was found",
    ),
    trial(
        7,
        "batch.size",
        {"batch": {"size": 64}},
        safety="semantic",
        status="skipped",
        reason="needs --allow semantic",
    ),
    trial(
        8,
        "compute.threads",
        {"compute": {"num_threads": 1}},
        safety="numeric",
        predicted=gain(1.0, 1.01),
        predicted_by_findings=gain(1.0, 1.01),
        status="skipped",
        reason="this change is expected to gain less than 2%",
    ),
)


def tuned(**changes: object) -> TuneResult:
    """Samples that wait: two changes kept, the others not."""
    values: dict[str, object] = {
        "command": ("python", "train.py", "--epochs", "6", "--data", "~/photos"),
        "before": sample.diagnosis(
            shares=WAITS,
            verdict="loader-io-bound",
            verdict_text="The loader's workers wait for storage: training waits for data 85% of the time.",
            step_s=sample.around(0.0451, 300),
            samples_per_s=709.0,
        ),
        "after": sample.diagnosis(
            shares=AFTER, verdict="balanced", step_s=sample.around(0.0067, 300), samples_per_s=4770.0
        ),
        "trials": TRIALS,
        "best": MORE,
        "speedup": factor(9.0, 4.88, 19.2, 12),
        "saving": factor(0.79, 0.77, 0.81, 12),
        "step_times": StepTimes(baseline_s=0.0475, candidate_s=0.0475 / 9.0),
        "in_turn": False,
        "checks": PROOF,
        "scatter": 0.021,
        "compared": 3,
        "wall_s": 257.0,
        "stopped": "no untried change could give a speed-up of 2% or more",
        "out_of_budget": False,
        "budget_s": 600.0,
        "allowed": ("exact", "resampled", "numeric"),
        "other_cores": 0.05,
        "goal": "time",
        "price_per_hour": None,
        "batch": None,
        "quality": None,
    }
    return TuneResult(**(values | changes))  # type: ignore[arg-type]


def no_win() -> TuneResult:
    trials = tuple(t for t in TRIALS if t.status not in ("kept", "unsafe"))
    return tuned(trials=trials, best={}, speedup=None, saving=None, step_times=None, checks=(), after=None)


def unproven() -> TuneResult:
    """One where nothing was proven, and one change looked faster."""
    looked = trial(1, "loader.workers", {"loader": {"num_workers": 2}}, speedup=factor(8.2, 0.0, math.inf, 5))
    return replace(no_win(), unproven=replace(looked, checks=tuned().checks[:2]))


def one_kept() -> TuneResult:
    return tuned(
        trials=TRIALS[:1],
        best=WORKERS,
        speedup=TRIALS[0].speedup,
        step_times=StepTimes(baseline_s=0.05, candidate_s=0.05 / 7.36),
        stopped="the time budget of 60 s is spent",
        saving=None,
    )


def interrupted() -> TuneResult:
    return tuned(
        speedup=None, saving=None, step_times=None, stopped="interrupted; the result contains the changes kept so far"
    )


def in_turn() -> TuneResult:
    stopped = "the time budget of 60 s is spent"
    return tuned(speedup=factor(8.83, 4.9, 16.1, 4), saving=None, in_turn=True, after=None, stopped=stopped)


def too_short() -> TuneResult:
    before = sample.diagnosis(shares={}, step_s=None, samples_per_s=None, verdict="too-short")
    return tuned(
        before=before,
        after=None,
        trials=(),
        best={},
        speedup=None,
        saving=None,
        step_times=None,
        checks=(),
        stopped="too short to tune: the program has only 6 steps",
    )


def for_memory() -> TuneResult:
    kept = trial(
        1,
        "memory.checkpoint",
        {"memory": {"checkpoint_every": 2}},
        predicted=gain(0.7, 0.9),
        predicted_by_findings=gain(0.7, 0.9),
        speedup=factor(0.78, 0.76, 0.8),
        saving=factor(1.84, 1.8, 1.88),
        status="kept",
        reason="gain proven",
        checks=PROOF,
    )
    slow = trial(
        2,
        "memory.micro_batches",
        {"memory": {"checkpoint_every": 2, "micro_batches": 8}},
        safety="numeric",
        speedup=factor(0.4, 0.38, 0.42),
        saving=factor(2.4, 2.3, 2.5),
        reason="needs less memory, but a step takes more than 1.5 times as long",
    )
    return tuned(
        goal="memory",
        trials=(kept, slow),
        best=kept.recipe,
        speedup=kept.speedup,
        saving=kept.saving,
        step_times=StepTimes(baseline_s=0.0451, candidate_s=0.0451 / 0.78),
        after=sample.diagnosis(shares=sample.COMPUTE, step_s=sample.around(0.058, 200), verdict="compute-bound"),
    )


def for_money() -> TuneResult:
    """Semantic changes allowed: sizes of batch, and runs to a loss over seeds."""
    larger = trial(
        1,
        "batch.size",
        {"loader": {"batch_size": 128}, "optimizer": {"lr_factor": 2.0}},
        safety="semantic",
        predicted=gain(1.3, 1.9),
        predicted_by_findings=gain(1.3, 1.9),
        speedup=factor(1.62, 1.51, 1.74),
        status="kept",
        reason="gain proven",
        checks=BROKEN,
    )
    sizes = (
        BatchSize(samples=32, progress=1.0, learning_rate=1.0, step_s=0.0451, peak_bytes=1.1 * sample.GIB),
        BatchSize(samples=64, progress=1.71, learning_rate=2.0, step_s=0.052, peak_bytes=1.6 * sample.GIB),
        BatchSize(samples=128, progress=2.6, learning_rate=4.0, step_s=0.072, peak_bytes=2.7 * sample.GIB),
        BatchSize(samples=256, progress=3.5, learning_rate=8.0, why_not="it needs more memory than there is"),
    )
    study = BatchStudy(
        noise=Interval(value=154.0, low=61.0, high=402.0, count=18),
        why="measured on steps 1 to 72",
        rule="SGD: the learning rate is multiplied by c if the batch size is multiplied by c",
        sizes=sizes,
    )
    seeds = (
        SeedTimes(seed=0, baseline_s=34.1, candidate_s=21.4),
        SeedTimes(seed=1, baseline_s=36.9, candidate_s=22.0),
        SeedTimes(seed=2, baseline_s=33.0, candidate_s=21.9),
    )
    return tuned(
        goal="cost",
        trials=(larger, *TRIALS[2:]),
        best=larger.recipe,
        speedup=larger.speedup,
        saving=None,
        step_times=StepTimes(baseline_s=0.0451, candidate_s=0.072),
        checks=BROKEN,
        price_per_hour=2.49,
        batch=study,
        quality=Quality(target=0.41, seeds=seeds, speedup=factor(1.58, 1.41, 1.77, 3), steps=900),
    )


def far_out() -> TuneResult:
    """Numbers as nobody hopes for them."""
    odd = (
        trial(1, "a", {"loader": {"threads": 1}}, speedup=factor(math.nan, 0.0, math.inf, 0), predicted=gain(0.0, 1e9)),
        trial(2, "b", {"loader": {"threads": 2}}, speedup=factor(3.0, 0.0, math.inf, 1), predicted=gain(1.0, 1.0)),
        trial(3, "c", {"loader": {"threads": 3}}, speedup=factor(900.0, 300.0, 2000.0), cpu_ratio=0.0),
        trial(4, "d", {}, speedup=factor(1e-4, 1e-5, 1e-3), cpu_ratio=math.nan),
    )
    return tuned(trials=odd, best={}, speedup=None, step_times=None, after=None)


HOSTILE = sample.HOSTILE


def hostile() -> TuneResult:
    """The user's strings, all of them, try to break out."""
    bad = trial(
        1,
        HOSTILE,
        {HOSTILE: {HOSTILE: HOSTILE}},
        status="kept",
        reason=HOSTILE,
        speedup=factor(2.0, 1.8, 2.2),
        checks=(Check(name=HOSTILE, passed=True, text=HOSTILE),),
    )
    out = trial(2, HOSTILE, {}, status="skipped", reason=HOSTILE)
    return tuned(
        command=(HOSTILE,),
        before=sample.hostile(),
        after=sample.hostile(),
        trials=(bad, out),
        best=bad.recipe,
        checks=bad.checks,
        stopped=HOSTILE,
    )


SCENES = {
    make.__name__: functools.cache(make)
    for make in (
        tuned,
        no_win,
        unproven,
        one_kept,
        interrupted,
        in_turn,
        too_short,
        for_memory,
        for_money,
        far_out,
        hostile,
    )
}
