"""Limit the summary of a program with many loaders by merging similar loaders.

A program may build a loader for each client or each epoch. The summary is written many times, so it must stay small.
After the first 48 loaders, each further loader is added to the first one of the same class, dataset, workers and batch
size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_MOST = 48  # loaders with their own entries
_IDENTITY = ("class", "dataset", "num_workers", "batch_size")
_SUMS = ("epochs", "train_fetches", "train_wait_s", "thread_fetches", "eval_fetches", "eval_wait_s", "samples")
_METER_SUMS = ("batches", "samples", "produce_s", "cpu_s", "runnable_s", "collate_s", "collate_cpu_s")

Entry = dict[str, Any]


def bounded(entries: Iterable[Entry]) -> list[Entry]:
    """Return at most some dozens of entries. Further entries are merged into similar entries, or left out.

    A loader's number is the position of its entry in the list, so the first entries keep their positions.
    """
    kept: list[Entry] = []
    first: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        identity = tuple(entry.get(name) for name in _IDENTITY)
        alike = first.get(identity)
        if len(kept) < _MOST:
            kept.append(entry)
            first.setdefault(identity, entry)
        elif alike is not None:
            _add(alike, entry)
        elif len(first) < 2 * _MOST:  # no similar loader has an entry
            kept.append(entry)
            first[identity] = entry
    return kept


def _add(entry: Entry, other: Entry) -> None:
    entry["together"] = entry.get("together", 1) + 1  # number of loaders in this entry
    for name in _SUMS:
        entry[name] = _sum(entry.get(name), other.get(name))
    if entry.get("meter") and other.get("meter"):
        entry["meter"] = _meters(entry["meter"], other["meter"])
    else:
        entry["meter"] = entry.get("meter") or other.get("meter")


def _meters(one: Entry, other: Entry) -> Entry:
    width = max(len(one["histogram"]), len(other["histogram"]))
    counts = [[*meter["histogram"], *[0] * (width - len(meter["histogram"]))] for meter in (one, other)]
    return {
        **one,
        **{name: _sum(one.get(name), other.get(name)) for name in _METER_SUMS if name in one},
        "max_batch_s": max(one["max_batch_s"], other["max_batch_s"]),
        "histogram": [a + b for a, b in zip(*counts, strict=True)],
        "draws_random": bool(one.get("draws_random") or other.get("draws_random")),
        "own_generator": bool(one.get("own_generator") or other.get("own_generator")),
    }


def _sum(one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else one + other
