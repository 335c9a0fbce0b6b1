"""Do pipelines that are played come as near to what was measured as closed forms do?

    python benchmarks/plan/played.py

Of the published rows, those with a pipeline whose blocks divide and whose micro-batches go round; the constants were
fitted with closed forms.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median

import numpy as np
from fit import ROWS

from paceline.core.errors import UsageError
from paceline.plan.cost.case import Case
from paceline.plan.cost.constants import fitted
from paceline.plan.cost.pipeline import simulate_case
from paceline.plan.validate.prediction import choose_candidates, predict_rows, prepare
from paceline.plan.validate.published_rows import PublishedRow, read_rows


def even(case: Case) -> bool:
    stages = case.layout.pp * case.training.chunks
    return case.layout.pp > 1 and case.model.layers % stages == 0


def pipelines(rows: list[PublishedRow]) -> list[tuple[PublishedRow, Case]]:
    """Rows with a measured step and the candidate of each that is predicted."""
    prepared = prepare(rows)
    picked = choose_candidates(prepared, fitted().constants)
    first = np.searchsorted(prepared.owner, np.arange(len(rows)))
    cases = [
        (row, row.timed[picked[index] - first[index]])
        for index, row in enumerate(rows)
        if picked[index] >= 0 and row.step_s and not row.out_of_memory
    ]
    return [(row, case) for row, case in cases if even(case)]


def errors() -> dict[str, list[tuple[float, float]]]:
    """By source, of each row: of the closed form and of the played pipeline."""
    rows = read_rows(ROWS)
    closed = {id(row): found.step_s for row, found in zip(rows, predict_rows(rows, fitted().constants), strict=True)}
    found = defaultdict(list)
    for row, case in pipelines(rows):
        try:
            seconds = simulate_case(case, fitted().constants).step.total[0]
        except UsageError:
            continue
        found[row.source].append((abs(closed[id(row)] / row.step_s - 1), abs(seconds / row.step_s - 1)))
    return found


def main() -> None:
    found = errors()
    for source, pairs in found.items():
        formula, played = (median(each) for each in zip(*pairs, strict=True))
        print(f"{source:46} {len(pairs):3} rows   closed form {formula:6.1%}   played {played:6.1%}")
    for name, side in (("closed form", 0), ("played", 1)):
        each = [median(pair[side] for pair in pairs) for pairs in found.values()]
        pooled = median(pair[side] for pairs in found.values() for pair in pairs)
        print(f"{name}: median of sources {median(each):.1%}, of {sum(map(len, found.values()))} rows {pooled:.1%}")


if __name__ == "__main__":
    main()
