"""The parts of the step time and of the memory of a device; each has a bar and a table."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core import units
from paceline.plan.cost.plan import Plan
from paceline.plan.search.advice import Advice
from paceline.report.page.chart import legend, meter, stacked, swatch
from paceline.report.page.markup import Markup, element, join, section, table
from paceline.report.plan.words import TIME_WORDS, utilisation

# The phase (`report.phases`) whose colour each part uses; idle time is grey.
_TIME = {
    "matrix": "forward",
    "attention": "backward",
    "bandwidth": "evaluation",
    "launch": "transfer",
    "head": "checkpoint",
    **dict.fromkeys(("tensor", "expert", "shard", "stages", "reduce"), "communication"),
    "optimizer": "optimizer",
    "data": "data_wait",
    "bubble": "idle",
    "rest": "other",
}
_MEMORY = {
    "weights": "backward",
    "gradients": "forward",
    "optimizer": "optimizer",
    "activations": "checkpoint",
    "logits": "transfer",
    "buffers": "communication",
    "workspace": "evaluation",
    "fragmentation": "other",
    "context": "data_wait",
}
_MEANING = {
    "weights": "as stored between steps",
    "gradients": "of the weights on this GPU",
    "optimizer": "moments, and copies of weights",
    "activations": "of the micro-batches that are being computed",
    "logits": "and their gradients",
    "buffers": "of sharding and communication",
    "workspace": "of attention and libraries",
    "fragmentation": "reserved by PyTorch but not used by tensors",
    "context": "of CUDA and NCCL",
}
_LEAST = 0.001  # least share of a part in the list


def time(advice: Advice) -> Markup:
    """Return the section with the parts of the step time."""
    plan = advice.best or advice.found.nearest
    shares = {name: plan.step_parts.get(name, 0.0) / plan.step_s for name in _TIME}
    rows = (
        [
            _named(_TIME[name], TIME_WORDS[name], ""),
            units.seconds(plan.step_parts[name]),
            *_share(shares[name], name, _TIME),
        ]
        for name in _shown(shares, _TIME)
    )
    took = f"{units.seconds(plan.step_s)} ± {units.percent(advice.spread)}"
    said = (
        f"One step on one GPU: {took}. The step time contains only the communication that does not overlap with "
        f"computing. "
        f"{utilisation(plan)}."
    )
    return section(
        "time",
        "Where the time goes",
        element("p", said, class_="quiet"),
        _bar(shares, _TIME, TIME_WORDS, "Shares of step time"),
        table((("Part", ""), ("Seconds", "num"), ("Share", "num"), ("", "bar")), rows, class_="parts"),
    )


def memory(advice: Advice) -> Markup:
    """Return the section with the parts of the memory of the fullest device."""
    plan = advice.best or advice.found.nearest
    available = plan.case.cluster.memory_bytes
    whole = max(available, plan.memory_bytes)
    shares = {name: plan.memory_parts.get(name, 0.0) / whole for name in _MEMORY}
    shares["free"] = max(0.0, 1 - plan.memory_bytes / whole)
    classes = {**_MEMORY, "free": "free"}
    rows = (
        [
            _named(_MEMORY[name], name, _MEANING[name]),
            units.size(plan.memory_parts[name]),
            *_share(shares[name], name, _MEMORY),
        ]
        for name in _shown(shares, _MEMORY)
    )
    return section(
        "memory",
        "What takes the memory",
        element("p", _held(plan), class_="quiet"),
        _bar(shares, classes, {name: name for name in classes}, f"Shares of {units.size(whole)}"),
        table((("Part", ""), ("Bytes", "num"), ("Share", "num"), ("", "bar")), rows, class_="parts"),
    )


def _held(plan: Plan) -> str:
    available = plan.case.cluster.memory_bytes
    where = f"The fullest GPU: {units.size(plan.memory_bytes)} of {units.size(available)}"
    return (
        f"{where} (as nvidia-smi counts), {units.size(plan.reserved_bytes)} reserved, "
        f"{units.size(plan.allocated_bytes)} allocated; fits with probability {plan.fits:.2f}."
    )


def _shown(shares: Mapping[str, float], classes: Mapping[str, str]) -> list[str]:
    return sorted((name for name in classes if shares[name] >= _LEAST), key=lambda name: -shares[name])


def _bar(shares: Mapping[str, float], classes: Mapping[str, str], names: Mapping[str, str], label: str) -> Markup:
    """Return the shares as one bar; shares with the same colour are added up."""
    joined: dict[str, tuple[str, float]] = {}
    for name, class_ in classes.items():
        before = joined.get(class_, ("", 0.0))
        if shares[name] >= _LEAST:
            joined[class_] = ("messages" if before[0] else names[name], before[1] + shares[name])
    parts = [(class_, name, share) for class_, (name, share) in joined.items()]
    told = ", ".join(f"{name} {units.percent(share)}" for _, name, share in parts)
    key = legend([(class_, f"{name} {units.percent(share)}") for class_, name, share in parts])
    return element("div", stacked(parts, f"{label}: {told}", named=True), key, class_="hero")


def _named(class_: str, name: str, meaning: str) -> Markup:
    beside = element("small", f" {meaning}") if meaning else None
    return join([swatch(class_), name, beside])


def _share(share: float, name: str, classes: Mapping[str, str]) -> tuple[str, Markup]:
    return units.percent(share), meter(share, classes[name])
