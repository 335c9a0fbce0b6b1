"""How much better than guessing is ``paceline plan``, and how fast? Beside one constant MFU per kind of card.

    python benchmarks/plan/floors.py [--json FILE]

Both are fitted without the source that they are measured on (releases of one product together). The floor is a single
share of the datasheet's peak per architecture and format, the median of the rows that it may see; it knows the layout
only by the number of GPUs. Times are CPU seconds of this process, the best of three.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

from fit import ROWS, family, fit

from paceline.plan.cost import pipeline
from paceline.plan.cost.case import parse_layout
from paceline.plan.cost.constants import Fitted, fitted
from paceline.plan.cost.flops import model_flops
from paceline.plan.cost.machines import parse_machines
from paceline.plan.models.lookup import published_transformer
from paceline.plan.search.grid import engine_refusal, grid_of
from paceline.plan.search.offers import OfferLimits, find_offers
from paceline.plan.search.search import search
from paceline.plan.search.wish import Wish
from paceline.plan.validate.accuracy import validate
from paceline.plan.validate.published_rows import PublishedRow, read_rows

_CACHED = (grid_of, engine_refusal, pipeline.micro_batches_saved, pipeline._task_orders, pipeline._scheduled_tasks)


def kind(row: PublishedRow) -> tuple[str, str]:
    case = row.timed[0]
    return case.cluster.gpu.architecture, case.training.precision


def mfu(row: PublishedRow) -> float:
    case = row.timed[0]
    peak = case.cluster.gpu.peak_flops.get(case.training.precision, 989e12)
    return model_flops(case) / row.step_s / case.cluster.count / peak


def floor_errors(seen: list[PublishedRow], unseen: list[PublishedRow]) -> dict[str, list[float]]:
    """By source, errors of a constant MFU; a kind of card that no row showed takes the median of all."""
    shares = defaultdict(list)
    for row in seen:
        shares[kind(row)].append(mfu(row))
    overall = median(mfu(row) for row in seen)
    errors = defaultdict(list)
    for row in unseen:
        share = median(shares[kind(row)]) if kind(row) in shares else overall
        errors[row.source].append(abs(mfu(row) / share - 1))
    return errors


def accuracy() -> dict[str, dict[str, float]]:
    rows = read_rows(ROWS)
    timed = [row for row in rows if row.cases and row.step_s]
    found = {}
    for name in dict.fromkeys(map(family, timed)):
        unseen = [row for row in timed if family(row) == name]
        floor = floor_errors([row for row in timed if family(row) != name], unseen)
        constants = fit([row for row in rows if family(row) != name])
        ours = validate(unseen, Fitted(constants=constants, time_spread={}, memory_spread=0.1)).sources
        for source, errors in floor.items():
            found[source] = {"constant_mfu": median(errors), "paceline": ours[source].time_mdape}
    return found


def cpu_seconds(work, fresh: bool = True) -> float:
    best = float("inf")
    for _ in range(3):
        if fresh:
            for each in _CACHED:
                each.cache_clear()
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def speed() -> dict[str, float]:
    model = published_transformer("Llama-3-70B")
    small = parse_machines("64xH100-SXM", 8, None).cluster
    one = Wish(
        model=model, cluster=small, global_batch=512, layout=parse_layout("tp=8,pp=8"), micro_batch=1, ways=("full",)
    )
    found = {"one plan": cpu_seconds(lambda: search(one, fitted()))}
    for count in (64, 1024, 16384):
        cluster = replace(small, count=count)
        wish = Wish(model=model, cluster=cluster, global_batch=max(512, count))
        found[f"one cluster of {count} GPUs"] = cpu_seconds(lambda wish=wish: search(wish, fitted()))
    wish = Wish(model=published_transformer("Llama-3-8B"), cluster=small, global_batch=512)
    found["the catalogue"] = cpu_seconds(lambda: find_offers(wish, 1000, OfferLimits(), fitted()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    errors, seconds = accuracy(), speed()
    for source, each in errors.items():
        print(f"{source:46} constant MFU {each['constant_mfu']:6.1%}   paceline {each['paceline']:6.1%}")
    for name in ("constant_mfu", "paceline"):
        print(f"median of sources, {name}: {median(each[name] for each in errors.values()):.1%}")
    for name, value in seconds.items():
        print(f"{name}: {value:.3f} s")
    if options.json:
        record = {"schema": "paceline.benchmark.plan/1", "date": str(date.today()), "errors": errors, "cpu_s": seconds}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
