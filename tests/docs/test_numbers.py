"""Are the figures of the README those of the newest result files, and are counts made rather than typed?"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

DATE = "-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]"
COUNTED = re.compile(
    r"\b(\d+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|forty|forty-one) "
    r"(?:small |other )?(findings|remedies|dependencies|(?<=small )packages)\b",
    re.I,
)


def newest(kind: str) -> tuple[str, Any]:
    """The name and the content of the newest results of a benchmark."""
    path = max(RESULTS.glob(f"{kind}{DATE}.json"))
    return path.name, json.loads(path.read_text(encoding="utf-8"))


def row(link: str) -> str:
    """The row of the README's table that links to a file of results."""
    rows = [line for line in README.splitlines() if line.startswith("|") and f"benchmarks/results/{link}" in line]
    assert len(rows) == 1, f"one row of the README should link benchmarks/results/{link}"
    return rows[0]


def test_case_study() -> None:
    name, found = newest("case-study")
    gain = found["speedup"]
    assert f"{gain['median']:.2f}x (95% CI {gain['low']:.2f}–{gain['high']:.2f})" in row(name)
    assert f"in {found['tune_s']:.0f} s" in row(name)
    assert found["same_losses"], "the README says that losses are the same"


def test_search() -> None:
    name, found = newest("tune")
    line = row(name.replace(".json", ".md"))
    summary = found["summary"]
    reached = summary["programs"] - len(summary["below_reached"])
    assert f"{reached} of {summary['programs']} programs" in line
    assert f"in {summary['cost_median']:.0%} of the grid's time" in line


def test_verdicts() -> None:
    name, found = newest("labelled")
    assert f"{found['right']} of {found['of']} programs" in row(name)


def test_cost_of_watching() -> None:
    name, found = newest("overhead")
    for tool in ("paceline", "traceml"):
        added = [found["steps"][step][tool]["added_us"] for step in ("tiny", "step_1ms", "step_10ms")]
        assert f"{min(added):.0f} to {max(added):.0f} µs" in row(name)
        fixed = found["fixed"][tool]["median_s"] - found["fixed"]["bare"]["median_s"]
        assert f"{fixed:.1f} s" in row(name)


@pytest.mark.parametrize(
    ("peer", "shown"),
    [("folder_pil", "a folder with PIL"), ("webdataset_tar", "WebDataset"), ("litdata_chunks", "LitData"),
     ("spdl_batches", "SPDL")],
)  # fmt: skip
def test_loader(peer: str, shown: str) -> None:
    name, found = newest("loader")
    ratio = next(one["ratio"] for one in found["summary"] if one["what"] == f"CPU beside {peer}, 2 workers")
    assert re.search(rf"{ratio:.2f}x (the CPU time )?of {shown}", row(name))


def test_captures() -> None:
    name, found = newest("trace")
    for key, kind in (("less_cpu", "less CPU time"), ("less_memory", "less memory")):
        ratios = [one[key] for one in found["captures"].values()]
        digits = 0 if key == "less_cpu" else 1
        assert f"{min(ratios):.{digits}f}x to {max(ratios):.{digits}f}x {kind}" in row(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_counts_are_not_typed(page: Path) -> None:
    """A typed count of findings, remedies or dependencies is wrong as soon as one is added."""
    assert [found[0] for found in COUNTED.finditer(page.read_text(encoding="utf-8"))] == []
