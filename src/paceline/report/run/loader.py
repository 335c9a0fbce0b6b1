"""The data loader: the time of a batch, the state of its workers, and the functions that they run."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core import units
from paceline.explain.model import Diagnosis, LoaderBreakdown, WorkerRow
from paceline.report import words
from paceline.report.page.chart import legend, stacked
from paceline.report.page.markup import Markup, element, join, section, table
from paceline.report.page.verdict import Fact, facts
from paceline.report.run.breakdown import functions

MAX_WORKERS = 16
SETTINGS = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "drop_last",
    "multiprocessing_context",
    "collate_fn",
)
STATES = (("on-cpu", "on a CPU"), ("blocked", "blocked (storage, network, locks)"), ("runnable", "waiting for a CPU"))


def loader(diagnosis: Diagnosis) -> Markup | None:
    """Return the section on the time that the loader takes to produce batches; None without a loader."""
    found = diagnosis.loader
    if found is None:
        return None
    return section(
        "loader",
        "Data loading",
        element("p", element("code", found.loader), class_="quiet"),
        facts(_facts(found)),
        _states(found),
        _workers(found.per_worker),
        functions("Functions that load the samples", found.hot, sources=diagnosis.sources),
        _settings(found),
    )


def _facts(found: LoaderBreakdown) -> list[Fact]:
    batch = found.batch_s
    where = f"in one {_maker(found)}" if found.makers else "in the training process"
    known = [
        _makers(found),
        ("Time for a batch", units.seconds(batch.value), f"{words.span(batch.low, batch.high)} {where}"),
        (
            "CPU time for a batch",
            units.seconds(found.cpu_per_batch_s),
            f"mean of {words.count(found.batches, 'batch')}",
        ),
        ("Collate", units.percent(found.collate), "of the time that the loader needs for batches"),
    ]
    if found.makers:
        known.append(
            (
                "Hand over",
                units.percent(found.hand_over),
                "CPU time, as a share of the time that the loader needs for batches",
            )
        )
    if found.read_bytes_per_s is not None:
        known.append(("Read from storage", words.quantity(found.read_bytes_per_s, "bytes/s"), ""))
    return known


def _makers(found: LoaderBreakdown) -> Fact:
    if found.threads:
        return "Threads", f"{found.threads}", "of the training process, because the loader has no workers"
    return "Workers", f"{found.workers}", "" if found.workers else "the training process loads the batches itself"


def _maker(found: LoaderBreakdown) -> str:
    return "thread" if found.threads else "worker"


def _states(found: LoaderBreakdown) -> Markup:
    shares = (found.on_cpu, found.blocked, found.runnable)
    parts = [(class_, name, share) for (class_, name), share in zip(STATES, shares, strict=True)]
    label = ", ".join(f"{name} {units.percent(share)}" for _, name, share in parts)
    key = [(class_, f"{name} {units.percent(share)}") for class_, name, share in parts]
    maker = f"a {_maker(found)}" if found.makers else "the training process"
    title = element("h3", f"While loading batches, {maker} is")
    return join((title, stacked(parts, label, named=True), legend(key)))


def _workers(rows: Sequence[WorkerRow]) -> Markup | None:
    if len(rows) < 2:  # the bar above already shows a single worker
        return None
    heads = [
        ("Worker", "num"), ("Producing", "bar"), ("Batches", "num"), ("On CPU", "num"), ("Blocked", "num"),
        ("Runnable", "num"), ("Collate", "num"), ("Hand over", "num"), ("Idle", "num"),
    ]  # fmt: skip
    made = table(heads, (_worker(row) for row in rows[:MAX_WORKERS]), class_="workers")
    if len(rows) <= MAX_WORKERS:
        return made
    return join((made, element("p", f"{MAX_WORKERS} of the {len(rows)} workers are shown.", class_="quiet")))


def _worker(row: WorkerRow) -> list[str | Markup]:
    times = (row.on_cpu_s, row.blocked_s, row.runnable_s)
    whole = sum(times) or 1.0
    parts = [(class_, name, time / whole) for (class_, name), time in zip(STATES, times, strict=True)]
    shown = (units.seconds(time) for time in (*times, row.collate_s, row.hand_over_s, row.idle_s))
    return [str(row.worker_id), stacked(parts, f"Worker {row.worker_id}"), f"{row.batches:,}", *shown]


def _settings(found: LoaderBreakdown) -> Markup | None:
    known = [(name, found.settings[name]) for name in SETTINGS if name in found.settings]
    if not known:
        return None
    pairs = ", ".join(f"{name}={value}" for name, value in known)
    return element("p", "Settings: ", element("code", pairs), class_="quiet")
