"""How is evidence worded? Small makers of the numbers that rules cite."""

from __future__ import annotations

from paceline import units
from paceline.explain.model import Evidence, Interval, LoaderBreakdown, Safety


def share_of_step(share: float, what: str) -> Evidence:
    """Cite a share of step time."""
    return Evidence(text=f"{what} takes {units.percent(share)} of step time", value=share, unit="share of step time")


def step_time(interval: Interval) -> Evidence:
    """Cite the median step time with its interval."""
    text = (
        f"a step takes {units.seconds(interval.value)} in the median "
        f"(95 % interval {units.seconds(interval.low)} to {units.seconds(interval.high)}, {interval.count} steps)"
    )
    return Evidence(text=text, value=interval.value, unit="s")


def kinds_of_time(loader: LoaderBreakdown) -> Evidence:
    """Cite how the makers of batches spend their time."""
    who = ("the workers" if loader.workers else "the threads") if loader.makers else "the training process"
    text = (
        f"while making batches, {who} spent {units.percent(loader.on_cpu)} on a CPU, {units.percent(loader.blocked)} "
        f"blocked and {units.percent(loader.runnable)} ready without a CPU ({loader.batches} batches)"
    )
    return Evidence(text=text, value=loader.on_cpu, unit="share of time making batches")


def hot(loader: LoaderBreakdown) -> list[Evidence]:
    """Cite the stages that the loader itself has timed, and the function in which most samples were taken."""
    if not loader.hot:
        return stages(loader)
    top = loader.hot[0]
    text = f"{units.percent(top.share)} of stack samples of making batches are in {top.function} ({top.count} samples)"
    return [*stages(loader), Evidence(text=text, value=top.share, unit="share of samples")]


def stages(loader: LoaderBreakdown) -> list[Evidence]:
    """Cite the slowest stage of a loader that times its own, with the others."""
    told = loader.settings.get("stages")
    timed = told if isinstance(told, dict) else {}
    costs = {name: one["wall_s"] / one["samples"] for name, one in timed.items() if one["samples"]}
    if not costs:
        return []
    slowest = max(costs, key=lambda name: costs[name])
    each = ", ".join(f"{name} {units.seconds(cost)}" for name, cost in costs.items())
    text = f"of a sample, by the loader's own clock: {each} ({timed[slowest]['samples']} samples timed)"
    return [Evidence(text=text, value=costs[slowest], unit=f"s of a sample in {slowest}")]


def collating(loader: LoaderBreakdown) -> list[Evidence]:
    """Cite the collate function when it counts."""
    if loader.collate < 0.2:
        return []
    name = loader.settings.get("collate_fn")
    text = f"{units.percent(loader.collate)} of the time of making batches is in the collate function {name}"
    return [Evidence(text=text, value=loader.collate, unit="share of time making batches")]


def makers(loader: LoaderBreakdown | None) -> str:
    """Name who makes batches behind the training thread."""
    if loader is None:
        return "the program's own background readers"
    return f"{loader.threads} threads" if loader.threads else f"{loader.workers} workers"


def more_makers(loader: LoaderBreakdown | None, wanted: int) -> tuple[str, str]:
    """Return the id of the remedy that sets another number of makers of batches, and the change in words."""
    if loader is not None and loader.threads:
        return "loader.threads", f"{wanted} threads that make batches instead of {loader.threads}"
    now = loader.workers if loader is not None else 0
    shared = ", each of which has to read its own part of the stream (get_worker_info)" if is_stream(loader) else ""
    return "loader.workers", f"DataLoader(num_workers={wanted}) instead of {now}{shared}"


def cpu_demand(demand: float, cores: float, loader: LoaderBreakdown | None) -> Evidence:
    """Cite the share of the allowed cores that the program wants."""
    text = f"the program wants {demand * cores:.1f} of {cores:g} cores; {makers(loader)}"
    return Evidence(text=text, value=demand, unit="share of allowed cores")


def safety_of_workers(loader: LoaderBreakdown | None, workers: int) -> Safety:
    """Return the safety class of another number of workers.

    Semantic where samples draw random numbers, or where a stream is read that several workers have to share out.
    """
    if loader is None:
        return "exact"
    shared = is_stream(loader) and (loader.workers, workers) != (0, 1)
    return "semantic" if loader.draws_random or shared else "exact"


def is_stream(loader: LoaderBreakdown | None) -> bool:
    """Return whether a loader reads an IterableDataset."""
    return loader is not None and bool(loader.settings.get("iterable"))
