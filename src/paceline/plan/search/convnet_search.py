"""The search for the best micro-batch of a convolutional network, with one replica on each GPU."""

from __future__ import annotations

from dataclasses import asdict, replace

from paceline.core.errors import UsageError
from paceline.plan.cost.case import Case, PlannedLayout, Training
from paceline.plan.cost.constants import SURE, Fitted, probability
from paceline.plan.cost.convnet import conv_step, replica_memory
from paceline.plan.cost.plan import Plan
from paceline.plan.models.architecture import ConvNet
from paceline.plan.search.wish import SearchResult, Wish, unbeaten


def replica_cases(whole: Case, batch: int, micro_batch: int | None) -> list[Case]:
    """Return a case for each micro-batch size to try: powers of two that divide the batch, or only the given size.

    Raises:
        UsageError: The layout is not pure data parallelism on all GPUs, or the batch cannot be divided evenly.
    """
    count = whole.cluster.count
    if whole.layout != PlannedLayout(dp=count):
        raise UsageError(
            f"for convolutional networks, only data parallelism with one replica per GPU is supported; "
            f"give --layout dp={count}"
        )
    if batch % count:
        near = max(1, batch // count) * count
        raise UsageError(f"a batch of {batch} cannot be split evenly over {count} GPUs; give --batch {near}")
    each = batch // count
    powers = [2**power for power in range(each.bit_length()) if each % 2**power == 0]
    sizes = [micro_batch] if micro_batch else sorted({*powers, each})
    if each % sizes[0]:
        raise UsageError(f"{each} samples per GPU are not a multiple of the micro-batch {sizes[0]}")
    how = whole.training
    return [replace(whole, training=replace(how, micro_batch=float(size), micro_steps=each // size)) for size in sizes]


def search_convnet(wish: Wish, model: ConvNet, fitted: Fitted) -> SearchResult:
    """Return the best micro-batch sizes of a convolutional network with one replica on each GPU."""
    cases = replica_cases(
        Case(
            model=model,
            layout=wish.layout or PlannedLayout(dp=wish.cluster.count),
            training=_loop(wish),
            cluster=wish.cluster,
        ),
        wish.global_batch,
        wish.micro_batch,
    )
    plans = sorted((_replica(case, fitted) for case in cases), key=lambda plan: (plan.step_s, plan.memory_bytes))
    front = unbeaten([plan for plan in plans if plan.fits >= SURE], lambda plan: plan.memory_bytes)
    unsure = sum(plan.fits < SURE for plan in plans)
    counts = {
        "may not fit in memory, mostly because of activations": unsure,
        "slower than another layout that needs no more memory": len(plans) - unsure - len(front),
    }
    return SearchResult(
        plans=tuple(front),
        looked_at=len(plans),
        rejected={why: count for why, count in counts.items() if count},
        nearest=min(plans, key=lambda plan: plan.memory_bytes),
        played=0,
    )


def _loop(wish: Wish) -> Training:
    weight, gradient, optimizer = wish.states
    return Training(
        micro_batch=1.0,
        precision=wish.precision,
        kernels=wish.kernels,
        weight_bytes=weight,
        gradient_bytes=gradient,
        optimizer_bytes=optimizer,
    )


def _replica(case: Case, fitted: Fitted) -> Plan:
    seconds, held = conv_step(case, fitted.constants), replica_memory(case, fitted.constants)
    need = sum(held.values())
    return Plan(
        case=case,
        step_s=seconds.total,
        step_parts=asdict(seconds),
        memory_bytes=need,
        memory_parts=held,
        fits=probability(need, case.cluster.memory_bytes, fitted.memory_spread),
    )
