"""The section on batch sizes: speed and progress of each measured size."""

from __future__ import annotations

from paceline.core import units
from paceline.report import words
from paceline.report.page.chart import meter
from paceline.report.page.markup import Markup, element, section, sentence, table
from paceline.report.tune.words import batch_lines
from paceline.tune.search.batch_size import BatchSize, BatchStudy
from paceline.tune.search.result import TuneResult


def batch(tuned: TuneResult) -> Markup | None:
    """Return the section with speed and progress of each batch size; None if batch sizes were not measured."""
    found = tuned.batch
    if found is None:
        return None
    noise, *_, picks = batch_lines(found)
    heads = [
        ("Samples", "num"), ("A step", "num"), ("Samples a second", "num"), ("Memory, peak", "num"),
        ("Progress a step", "num"), ("Time for the same progress", "bar"), ("", "num"),
    ]  # fmt: skip
    longest = max((size.loss_s for size in found.sizes if size.loss_s is not None), default=1.0)
    return section(
        "batch",
        "Batch sizes",
        element("p", sentence(words.headline(noise)), class_="prose"),
        table(heads, (_row(size, longest) for size in found.sizes), class_="sizes"),
        element("p", sentence(words.headline(picks)), class_="quiet"),
        _failed(found),
    )


def _row(size: BatchSize, longest: float) -> list[str | Markup]:
    drawn = meter(size.loss_s / longest) if size.loss_s is not None else ""
    return [
        f"{size.samples:,}",
        units.seconds(size.step_s),
        units.rate(size.samples_per_s, "samples/s"),
        units.size(size.peak_bytes),
        f"{size.progress:.2f}",
        drawn,
        units.seconds(size.loss_s),
    ]


def _failed(found: BatchStudy) -> Markup | None:
    failed = [element("li", f"{size.samples:,} samples: {size.why_not}") for size in found.sizes if size.why_not]
    return element("ul", *failed, class_="evidence") if failed else None
