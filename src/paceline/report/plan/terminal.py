"""A plan on the terminal: the best one first, then reasons, alternatives and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date

from paceline.core.remedies import PRECISION_REMEDIES
from paceline.core.units import money, percent, rate, seconds, size
from paceline.plan.cost.money import TrainingCost, age_days
from paceline.plan.cost.plan import Plan
from paceline.plan.models.architecture import Model, Transformer
from paceline.plan.search.advice import Advice
from paceline.plan.search.offers import MachineOffer, Offers
from paceline.report.plan.words import (
    TIME_WORDS,
    adapted,
    aged,
    batches,
    dollars,
    energy,
    hours,
    speed,
    turns,
    utilisation,
    weights,
)

_MOST_PLANS = 6


def lines_of(advice: Advice) -> Iterator[str]:
    """Yield the lines of the plans for one cluster."""
    model, best = advice.wish.model, advice.best
    yield f"{model.name}: {weights(model)}, {_size(model)}"
    if beside := adapted(advice.wish.adapted):
        yield beside
    count = advice.found.looked_at
    looked_at = f"{count:,} configuration{'' if count == 1 else 's'} compared"
    yield f"on {advice.machines.name}, {advice.wish.global_batch} samples per step; {looked_at}"
    yield ""
    if best is None:
        yield from _none_fits(advice)
        return
    yield from _best(advice, best)
    yield from _not_checked(best)
    yield from _others(advice)
    yield from _around(advice)
    if advice.cost is not None:
        yield ""
        yield from cost_lines(advice.cost)
        most, when = energy(advice.cost, advice.wish.cluster.gpu)
        yield f"energy: {most}"
        yield f"  {when}"


def offer_lines(found: Offers, today: date) -> Iterator[str]:
    """Yield the lines of the machine offers that no other offer beats, cheapest first."""
    yield "machines for which no other machine is both faster and cheaper, cheapest first:"
    rows = [
        [
            dollars(offer.usd),
            hours(offer.hours),
            f"± {percent(offer.spread)}",
            f"{money(offer.machines.usd_per_hour)}/h",
            ", ".join(filter(None, (offer.machines.name, _region(offer)))),
            str(offer.plan.case.layout),
        ]
        for offer in found.best
    ]
    yield from _aligned(rows, ">>>><<")
    for source in dict.fromkeys(
        offer.machines.instance.price_source for offer in found.best if offer.machines.instance
    ):
        yield f"price: {source}{aged(age_days(source, today))}"
    yield from _spot_lines(found)
    counts = {"slower and more expensive than a machine in this list": len(found.beaten), **found.refused}
    if any(counts.values()):
        yield "left out:"
        yield from _counted({why: count for why, count in counts.items() if count})


def _spot_lines(found: Offers) -> Iterator[str]:
    """Yield the lines on spot machines: the best offers that have a spot price, and the cheapest spot machine."""
    cheapest = found.cheapest_spot
    if cheapest is None:
        return
    others = () if cheapest in found.best else (cheapest,)
    for offer in (*found.best, *others):
        if offer.spot is not None:
            least = ", the cheapest spot machine" if offer is cheapest else ""
            where = ", ".join(filter(None, (offer.machines.name, _region(offer))))
            yield f"spot: {dollars(offer.spot.usd)} in {hours(offer.spot.hours)} on {where}{least}"
    if cheapest.spot is not None:
        yield f"  {cheapest.spot.source}"


def cost_lines(cost: TrainingCost) -> Iterator[str]:
    """Yield the lines on the time and cost of the training."""
    yield (
        f"{cost.steps:,} steps take {hours(cost.hours)} ({hours(cost.hours_low)} to {hours(cost.hours_high)}; "
        "for 80% of published runs, the measured time was within such an interval)"
    )
    if cost.usd is None:
        yield (
            "cost: n/a, the price of these machines is unknown; give --price USD (price of all machines together, "
            "per hour)"
        )
        return
    yield f"cost: {dollars(cost.usd)} ({dollars(cost.usd_low)} to {dollars(cost.usd_high)})"
    yield f"  at {money(cost.usd_per_hour)}/h; {cost.source}{'' if cost.given else aged(cost.age_days)}"
    if cost.spot is not None:
        yield (
            f"spot: {dollars(cost.spot.usd)} in {hours(cost.spot.hours)}, with {cost.spot.interruptions:.1f} "
            f"interruptions and a checkpoint every {seconds(cost.spot.checkpoint_every_s)}"
        )
        yield f"  {cost.spot.source}"


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    """Yield rows with cells aligned in columns; `sides` has ``<`` or ``>`` for each column."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)]
        yield f"  {'  '.join(cells)}".rstrip()


def _counted(reasons: Mapping[str, int]) -> Iterator[str]:
    counts = sorted(reasons.items(), key=lambda pair: -pair[1])
    yield from _aligned([[f"{count:,}", why] for why, count in counts], "><")


def _best(advice: Advice, best: Plan) -> Iterator[str]:
    throughput, unit = speed(best)
    per_gpu = rate(throughput / best.case.cluster.count, unit)
    yield f"best: layout {best.case.layout}"
    yield f"  {_how(best)}"
    yield f"  step {seconds(best.step_s)} (± {percent(advice.spread)}), {per_gpu} per GPU"
    yield f"    {utilisation(best)}"
    for name, value in sorted(best.step_parts.items(), key=lambda part: -part[1]):
        if value >= 0.005 * best.step_s:
            yield f"    {seconds(value):>10}  {percent(value / best.step_s):>6}  {TIME_WORDS[name]}"
    available = best.case.cluster.memory_bytes
    yield f"  memory {size(best.memory_bytes)} of {size(available)} (nvidia-smi); fits with probability {best.fits:.3f}"
    weight, gradient, optimizer = advice.wish.states
    what = "a trained weight" if advice.wish.adapted.adapters else "a weight"
    yield f"    {what} takes {weight:g} B, its gradient {gradient:g} B, {advice.wish.optimizer} {optimizer:g} B"
    yield f"    reserved by PyTorch {size(best.reserved_bytes)}, allocated {size(best.allocated_bytes)}"
    for name, value in sorted(best.memory_parts.items(), key=lambda part: -part[1]):
        if value >= 0.005 * best.memory_bytes:
            yield f"    {size(value):>10}  {percent(value / best.memory_bytes):>6}  {name}"


def _size(model: Model) -> str:
    if isinstance(model, Transformer):
        experts = f", {model.experts} experts" if model.experts else ""
        return f"{model.layers} blocks of width {model.hidden:,}{experts}, {model.seq:,} tokens per sample"
    return f"{model.layers} convolutions, {model.flops / 1e9:.3g} GFLOP per sample in the forward pass"


def _how(plan: Plan) -> str:
    recomputed = f"recomputation {plan.case.training.recompute}"
    return ", ".join(filter(None, (batches(plan), turns(plan), recomputed)))


def _not_checked(plan: Plan) -> Iterator[str]:
    """Yield the assumptions behind predictions for convolutional networks; nothing for transformers."""
    if not isinstance(plan.case.model, Transformer):
        yield (
            "  data: assumes that images have the size of ImageNet images and are decoded as fast as in published "
            "measurements of nodes with this GPU"
        )
        yield "  the predicted memory of convolutional networks was not compared with published measurements"


def _others(advice: Advice) -> Iterator[str]:
    found = advice.found
    if len(found.plans) > 1:
        yield ""
        yield "slower layouts that need less memory:"
        yield from _aligned([_row(plan) for plan in found.plans[1:_MOST_PLANS]], ">><<<")
    if found.rejected:
        yield ""
        yield "rejected:"
        yield from _counted(found.rejected)


def _row(plan: Plan) -> list[str]:
    how = plan.case.training
    taken = f"{how.schedule} x {how.chunks}" if how.chunks > 1 else how.schedule if plan.case.layout.pp > 1 else ""
    recomputed = "" if how.recompute == "none" else f"recomputation {how.recompute}"
    beside = ", ".join(filter(None, (taken, recomputed)))
    return [seconds(plan.step_s), size(plan.memory_bytes), str(plan.case.layout), batches(plan), beside]


def _around(advice: Advice) -> Iterator[str]:
    yield ""
    yield f"largest micro-batch that fits in this layout: {advice.largest_micro_batch}"
    if advice.formats:
        pages = {PRECISION_REMEDIES[plan.case.training.precision] for plan in advice.formats}
        yield "with matrix products in a data type with fewer bits (numbers are rounded differently):"
        rows = [[plan.case.training.precision, seconds(plan.step_s), *_row(plan)[1:]] for plan in advice.formats]
        yield from _aligned(rows, "<>><<<")
        yield from (f"`paceline explain {page}` describes how to use this data type" for page in sorted(pages))
    if advice.scaling:
        yield (
            "the same batch size on other numbers of GPUs (the percentages are the throughput per GPU relative to "
            "the best plan):"
        )
        rows = [
            [
                f"{each.plan.case.cluster.count:,}",
                rate(*speed(each.plan)),
                percent(each.efficiency),
                f"communication that does not overlap with computing {percent(each.exposed)}",
            ]
            for each in advice.scaling
        ]
        yield from _aligned(rows, ">>><")


def _none_fits(advice: Advice) -> Iterator[str]:
    near = advice.found.nearest
    yield (
        f"no layout fits in memory with a probability of at least 0.9; the layout that is closest to fitting needs "
        f"{size(near.memory_bytes)} of "
        f"{size(near.case.cluster.memory_bytes)}: "
        f"layout {near.case.layout}, micro-batch {near.case.training.micro_batch:g}, "
        f"recomputation {near.case.training.recompute} (fits with probability {near.fits:.2f})"
    )
    yield from _counted(advice.found.rejected)
    yield "use more GPUs, GPUs with more memory, or a smaller batch (--batch)"


def _region(offer: MachineOffer) -> str:
    return offer.machines.instance.region if offer.machines.instance else "n/a"
