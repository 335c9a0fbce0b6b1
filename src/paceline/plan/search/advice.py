"""The advice for one cluster: the best plan, alternatives, the cost, and the effect of other numbers of GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from paceline.core.errors import UsageError
from paceline.plan.cost.constants import Fitted, spread_of
from paceline.plan.cost.machines import Machines
from paceline.plan.cost.money import TrainingCost, training_cost
from paceline.plan.cost.plan import Plan
from paceline.plan.models.architecture import Transformer
from paceline.plan.search.search import largest_batch, search
from paceline.plan.search.wish import SearchResult, Wish

_NARROWER = {"fp32": ("tf32", "bf16"), "tf32": ("bf16",), "bf16": ("fp8",), "fp16": ("fp8",)}


@dataclass(frozen=True, kw_only=True)
class Target:
    """How much to train, and the price of the machines if the user gave a price."""

    tokens: float | None = None
    samples: float | None = None
    usd_per_hour: float | None = None
    price_source: str = ""
    today: date

    def steps(self, wish: Wish) -> int | None:
        """Return the number of training steps; None without a target.

        Raises:
            UsageError: The target is in tokens, but the model's samples have no tokens.
        """
        if self.tokens is not None and not isinstance(wish.model, Transformer):
            raise UsageError(f"samples of {wish.model.name} have no tokens; give --target-samples")
        each = wish.model.seq if isinstance(wish.model, Transformer) else 1
        samples = self.samples if self.tokens is None else self.tokens / each
        return None if samples is None else max(1, round(samples / wish.global_batch))


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The best plan on another number of GPUs, with the same global batch.

    Attributes:
        efficiency: Samples/s per GPU, relative to the requested plan.
        exposed: Share of the step in messages that do not overlap with computation.
    """

    plan: Plan
    efficiency: float
    exposed: float


@dataclass(frozen=True, kw_only=True)
class Advice:
    """All results for one cluster."""

    wish: Wish
    machines: Machines
    found: SearchResult
    spread: float
    cost: TrainingCost | None
    largest_micro_batch: int
    scaling: tuple[Scaled, ...]
    formats: tuple[Plan, ...]  # the best plans in narrower number formats of the GPU, which round differently

    @property
    def best(self) -> Plan | None:
        """Return the fastest plan that fits; None if none does."""
        return self.found.plans[0] if self.found.plans else None


def advise(wish: Wish, machines: Machines, target: Target, fitted: Fitted) -> Advice:
    """Return the best plans on a cluster, and those with other numbers of GPUs or other number formats.

    Raises:
        UsageError: No configuration divides the cluster, the batch and the model.
    """
    found = search(wish, fitted)
    best = found.plans[0] if found.plans else None
    spread = spread_of((best or found.nearest).case, fitted)
    steps = target.steps(wish)
    given = (target.usd_per_hour, target.price_source, target.today)
    return Advice(
        wish=wish,
        machines=machines,
        found=found,
        spread=spread,
        cost=training_cost(best, machines, steps, spread, given) if best and steps else None,
        largest_micro_batch=largest_batch(best, fitted) if best else 0,
        scaling=_scaling(wish, best, fitted) if best and wish.layout is None else (),
        formats=tuple(_formats(wish, fitted)) if best else (),
    )


def exposed(plan: Plan) -> float:
    """Return the share of the step time in messages that do not overlap with computation."""
    shown = ("tensor", "expert", "shard", "stages", "reduce")
    return sum(plan.step_parts.get(name, 0.0) for name in shown) / plan.step_s


def _formats(wish: Wish, fitted: Fitted) -> Iterator[Plan]:
    """Yield the best plan in each number format that the GPU supports and that is narrower than the requested one."""
    narrower = _NARROWER.get(wish.precision, ()) if isinstance(wish.model, Transformer) else ()
    for name in narrower:
        if name in wish.cluster.gpu.peak_flops:
            yield from search(replace(wish, precision=name, counted=None), fitted).plans[:1]


def _scaling(wish: Wish, best: Plan, fitted: Fitted) -> tuple[Scaled, ...]:
    found = []
    for count in _counts(wish):
        cluster = replace(wish.cluster, count=count, per_node=min(wish.cluster.per_node, count))
        try:
            plans = search(replace(wish, cluster=cluster), fitted).plans
        except UsageError:
            continue
        if plans:
            ratio = (plans[0].samples_per_s / count) / (best.samples_per_s / wish.cluster.count)
            found.append(Scaled(plan=plans[0], efficiency=ratio, exposed=exposed(plans[0])))
    return tuple(found)


def _counts(wish: Wish) -> Sequence[int]:
    """Return the GPU counts to compare: half, one, two, four and eight times as many, and one more node."""
    count, per_node = wish.cluster.count, wish.cluster.per_node
    return sorted({max(1, count // 2), count, count + per_node, 2 * count, 4 * count, 8 * count})
