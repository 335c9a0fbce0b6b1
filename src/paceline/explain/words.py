"""Evidence and phrases that several rules use."""

from __future__ import annotations

from paceline.core import units
from paceline.core.remedies import Safety
from paceline.core.statistics import Interval
from paceline.explain.model import Evidence, LoaderBreakdown

SHARE_OF_SAMPLES = "share of samples"  # the unit of evidence that names a hot function
_FEW_SAMPLES = 10  # with fewer stack samples, a contradicting measured time is trusted


def share_of_step(share: float, what: str) -> Evidence:
    """Return evidence for a share of step time."""
    return Evidence(text=f"{what} takes {units.percent(share)} of step time", value=share, unit="share of step time")


def step_time(interval: Interval) -> Evidence:
    """Return evidence with the median step time and its confidence interval."""
    text = (
        f"the median step takes {units.seconds(interval.value)} "
        f"(95% CI {units.seconds(interval.low)} to {units.seconds(interval.high)}, {interval.count} steps)"
    )
    return Evidence(text=text, value=interval.value, unit="s")


def kinds_of_time(loader: LoaderBreakdown) -> Evidence:
    """Return evidence on how the workers or threads spend their time."""
    who = ("the workers" if loader.workers else "the threads") if loader.makers else "the training process"
    text = (
        f"{who} loaded {loader.batches} batches; {units.percent(loader.on_cpu)} of the loading time was spent "
        f"computing, {units.percent(loader.blocked)} blocked, and {units.percent(loader.runnable)} waiting for a CPU "
        f"core"
    )
    return Evidence(text=text, value=loader.on_cpu, unit="share of time making batches")


def hot(loader: LoaderBreakdown) -> list[Evidence]:
    """Return evidence on the stages that the loader timed itself, and on the function with most stack samples."""
    if not loader.hot:
        return stages(loader)
    top = loader.hot[0]
    if top.count < _FEW_SAMPLES and top.share + loader.collate > 1:
        return stages(loader)  # the measured time of the collate function contradicts the samples
    text = (
        f"{top.function} takes {units.percent(top.share)} of the time that the loader needs for batches ({top.count} "
        f"stack samples)"
    )
    return [*stages(loader), Evidence(text=text, value=top.share, unit=SHARE_OF_SAMPLES)]


def stages(loader: LoaderBreakdown) -> list[Evidence]:
    """Return evidence on the stages of a loader that times its stages itself."""
    told = loader.settings.get("stages")
    timed = told if isinstance(told, dict) else {}
    costs = {name: one["wall_s"] / one["samples"] for name, one in timed.items() if one["samples"]}
    if not costs:
        return []
    slowest = max(costs, key=lambda name: costs[name])
    each = ", ".join(f"{name} {units.seconds(cost)}" for name, cost in costs.items())
    text = f"time per sample in each stage, measured by the loader: {each} ({timed[slowest]['samples']} samples)"
    return [Evidence(text=text, value=costs[slowest], unit=f"s of a sample in {slowest}")]


def collating(loader: LoaderBreakdown) -> list[Evidence]:
    """Return evidence on the collate function if it takes at least a fifth of the time."""
    if loader.collate < 0.2:
        return []
    name = loader.settings.get("collate_fn")
    share = units.percent(loader.collate)
    text = f"the collate function {name} takes {share} of the time that the loader needs for batches"
    return [Evidence(text=text, value=loader.collate, unit="share of time making batches")]


def makers(loader: LoaderBreakdown | None) -> str:
    """Return the background workers or threads as text, such as ``4 workers``."""
    if loader is None:
        return "the program's own background threads or processes"
    if loader.settings.get("in_thread"):
        return "threads of the program, which iterate a DataLoader without workers,"
    return f"{loader.threads} threads" if loader.threads else f"{loader.workers} workers"


def more_makers(loader: LoaderBreakdown | None, wanted: int) -> tuple[str, str]:
    """Return the id of the remedy that changes the number of workers or threads, and the change as text."""
    if loader is not None and loader.settings.get("in_thread"):
        return "loader.workers", f"use DataLoader(num_workers={wanted}) in the thread that iterates the loader"
    if loader is not None and loader.threads:
        return "loader.threads", f"{wanted} loader threads instead of {loader.threads}"
    now = loader.workers if loader is not None else 0
    shared = "; each worker must read its own part of the dataset (get_worker_info)" if is_stream(loader) else ""
    return "loader.workers", f"use DataLoader(num_workers={wanted}) instead of {now} workers{shared}"


def cpu_demand(demand: float, cores: float, loader: LoaderBreakdown | None) -> Evidence:
    """Return evidence on how many of the allowed cores the program needs."""
    text = f"with {makers(loader).rstrip(',')}, the program needs {demand * cores:.1f} of {cores:g} CPU cores"
    return Evidence(text=text, value=demand, unit="share of allowed cores")


def safety_of_workers(loader: LoaderBreakdown | None, workers: int) -> Safety:
    """Return the safety class of changing the number of workers.

    The class is ``semantic`` if several workers would read the same IterableDataset, because the samples would
    change. Otherwise it is the class of `safety_of_worker_draws`.
    """
    if loader is not None and is_stream(loader) and (loader.workers, workers) != (0, 1):
        return "semantic"
    return safety_of_worker_draws(loader)


def safety_of_worker_draws(loader: LoaderBreakdown | None) -> Safety:
    """Return the safety class of a change that moves the random draws of samples to other worker processes.

    torch seeds the global generators of each worker differently, so samples get other numbers of the same distribution
    (resampled). A generator of the dataset itself is copied, so all workers would draw the same numbers (semantic).
    """
    if loader is None or not loader.draws_random:
        return "exact"
    return "semantic" if loader.own_generator else "resampled"


def is_stream(loader: LoaderBreakdown | None) -> bool:
    """Return whether a loader reads an IterableDataset."""
    return loader is not None and bool(loader.settings.get("iterable"))
