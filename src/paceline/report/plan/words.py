"""The names of the parts of a plan, on the terminal and on pages."""

from __future__ import annotations

from paceline.core.units import money, percent, seconds
from paceline.hardware.catalogue import Gpu
from paceline.plan.cost.case import PlannedLayout
from paceline.plan.cost.flops import flops_of
from paceline.plan.cost.money import OLD_DAYS, TrainingCost
from paceline.plan.cost.plan import Plan
from paceline.plan.models.adapters import Adapted
from paceline.plan.models.architecture import Model, Transformer

TIME_WORDS = {
    "matrix": "matrix products",
    "attention": "attention",
    "bandwidth": "element-wise work",
    "launch": "waiting for kernel launches",
    "head": "output layer and loss",
    "tensor": "tensor and context parallel messages",
    "expert": "messages to experts",
    "shard": "gathering sharded weights",
    "stages": "messages between stages",
    "reduce": "reducing gradients",
    "data": "waiting for data",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
    "rest": "waiting for the slowest rank, and all other time",
}
MESSAGES = ("tensor", "expert", "shard", "stages", "reduce")
RECOMPUTATION = {
    "none": "nothing recomputed",
    "cheap": "normalizations and activation functions recomputed",
    "attention": "attention recomputed",
    "operators": "every second matrix product recomputed",
    "half": "every second block recomputed",
    "full": "every block recomputed",
}


def hours(value: float) -> str:
    """Return hours as text, in days from 48 hours on."""
    return seconds(value * 3600) if value < 48 else f"{value / 24:.3g} days"


def dollars(value: float | None) -> str:
    """Return the cost of the whole training as text, with three digits from a hundred dollars on."""
    if value is None or value < 100:
        return money(value)
    return f"{float(f'{value:.3g}'):,.0f} USD"


def energy(cost: TrainingCost, gpu: Gpu) -> tuple[str, str]:
    """Return the largest energy that the GPUs can use as text, and the assumption behind this number."""
    unsure = "" if gpu.verified == "repo" else ", not checked against the data sheet of the GPU"
    most = float(f"{cost.most_energy_kwh:.3g}")
    amount = f"{most:,.0f}" if most >= 100 else f"{most:g}"
    return (
        f"at most {amount} kWh for the longest expected time, without hosts and cooling",
        f"if every {gpu.name} draws its power limit of {gpu.power_w:g} W (hardware/data/gpus.csv{unsure})",
    )


def aged(days: int | None) -> str:
    """Return the age of a price as text, with a hint to check old prices."""
    if days is None:
        return " (the date of this price is unknown, so check the price)"
    return f" ({days} days old, so check the price)" if days > OLD_DAYS else f" ({days} days old)"


def weights(model: Model) -> str:
    """Return the number of weights of a model as text."""
    return _weights(model.params)


def adapted(what: Adapted) -> str:
    """Return a text on what is trained if weights are frozen; empty if all weights are trained."""
    if not what.adapters:
        return ""
    where = "queries and values"
    if what.adapters == "lora_all":
        where = "every product of a block" if what.adapted_share == 1 else "some products of a block"
    return (
        f"low-rank matrices on {where}: {_weights(what.trainable)} are trained, the others are frozen "
        f"with {what.frozen_bits:g} bits"
    )


def _weights(count: int) -> str:
    for unit, word in ((1e9, " billion"), (1e6, " million")):
        if count >= unit:
            return f"{count / unit:.3g}{word} weights"
    return f"{count:,} weights"


def utilisation(plan: Plan) -> str:
    """Return text on the model FLOPs utilisation of a plan: MFU and HFU, relative to the data sheet's peak."""
    found, precision = flops_of(plan.case, plan.step_s), plan.case.training.precision
    if found.peak is None:
        return f"MFU n/a: the {precision} peak of {plan.case.cluster.gpu.name} is unknown"
    peak = f"of {found.peak / plan.case.cluster.count / 1e12:.4g} TFLOP/s, dense {precision}"
    attention = ""
    if isinstance(plan.case.model, Transformer):
        causal = (
            f" ({percent(found.mfu_causal)} if only the causal half of the attention FLOPs is counted)"
            if plan.case.model.causal
            else ""
        )
        attention = f" counting the FLOPs of full attention{causal}"
    return f"MFU {percent(found.mfu_full)}{attention}, HFU {percent(found.hfu_full)}, {peak}"


def speed(plan: Plan) -> tuple[float, str]:
    """Return the throughput of a cluster and its unit: tokens/s, or samples/s for models without tokens."""
    if plan.tokens_per_s is None:
        return plan.samples_per_s, "samples/s"
    return plan.tokens_per_s, "tokens/s"


def axes(layout: PlannedLayout) -> str:
    """Return a layout as text in which lines can break between axes."""
    return str(layout).replace(",", ", ")


def batches(plan: Plan) -> str:
    """Return a text on the micro-batch size and the number of micro-steps of a rank."""
    how = plan.case.training
    return f"micro-batch {how.micro_batch:g} x {how.micro_steps}"


def turns(plan: Plan) -> str:
    """Return text on the pipeline schedule; empty for a single pipeline stage."""
    how = plan.case.training
    if plan.case.layout.pp == 1:
        return ""
    return how.schedule + (f" with {how.chunks} stages per rank" if how.chunks > 1 else "")
