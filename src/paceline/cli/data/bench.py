"""``paceline data bench``: measure how fast a data set loads."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import __version__
from paceline.cli.base.command import Command
from paceline.cli.base.files import DataPath, check_writable, to_json
from paceline.cli.base.outputs import json_text, tell_written, write_text
from paceline.cli.base.progress import Progress
from paceline.core import units

if TYPE_CHECKING:
    from paceline.data.loader.measure import Around, Measured
    from paceline.data.reading.cache_offer import CacheOffer
    from paceline.data.remote.asking import Counts

SCHEMA = "paceline.data-bench/1"


@click.command(
    cls=Command,
    name="bench",
    examples=(
        "paceline data bench shards/",
        "paceline data bench shards/ --batch-size 256 --threads 8",
        "paceline data bench shards/ --decoded-cache ram --json bench.json",
    ),
    groups={
        "Batches": ("--batch-size", "--size", "--length"),
        "Loader": ("--threads", "--decoded-cache"),
        "Limits": ("--samples", "--rounds"),
    },
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    metavar="N",
    help="Number of samples in a batch.",
)
@click.option(
    "--size",
    type=click.IntRange(1),
    default=224,
    show_default=True,
    metavar="PIXELS",
    help="Width and height of the image crops, in pixels.",
)
@click.option(
    "--length", type=click.IntRange(1), default=1024, show_default=True, metavar="N",
    help="Number of tokens in a sample (only for text).",
)  # fmt: skip
@click.option(
    "--threads",
    type=click.IntRange(0),
    metavar="N",
    help="Number of loader threads; 0 loads without threads. Default: the fastest number that was measured.",
)
@click.option(
    "--decoded-cache",
    metavar="ram|DIR",
    help="Cache decoded images in memory (ram) or in the folder DIR; the cache is filled before the measurement.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=4096,
    show_default=True,
    metavar="N",
    help="Maximum number of samples in one round of the measurement, but at least one batch.",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=5, show_default=True, metavar="N", help="Number of rounds to measure."
)
@to_json
@click.argument("folder", type=DataPath(), metavar="DATASET")
def command(folder: str, **options: Any) -> int:
    """Measure how fast a data set loads, as in training: shuffled, with random crops of images, in batches.

    DATASET is a folder that `paceline data convert` wrote, or the URL of one in object storage. Downloaded data stays
    in the cache. After each round, decoding alone is measured, because no loader can be faster than decoding. Images of
    which no crop can be taken are loaded whole. If samples do not fit into tensors, batches are lists of samples.
    """
    from paceline.data.format.folders import is_url
    from paceline.data.format.tokens import CONTENTS_FILE
    from paceline.data.loader.measure import measure
    from paceline.data.loader.spec import can_crop
    from paceline.data.reading.crops import RandomResizedCrop
    from paceline.data.reading.sharded import ShardedDataset
    from paceline.data.reading.token_dataset import TokenDataset

    check_writable(options["json_file"])
    tokens = not is_url(folder) and (Path(folder) / CONTENTS_FILE).exists()
    dataset = TokenDataset(folder, options["length"], dtype=None) if tokens else ShardedDataset(folder)
    pictures = isinstance(dataset, ShardedDataset) and can_crop(dataset)
    with Progress("rounds") as progress:
        found = measure(
            dataset,
            RandomResizedCrop(options["size"]) if pictures else None,
            batch_size=options["batch_size"],
            samples=options["samples"],
            rounds=options["rounds"],
            progress=progress,
            threads=options["threads"],
            decoded_cache=options["decoded_cache"],
        )
    remote = dataset.remote if isinstance(dataset, ShardedDataset) else None
    for line in [*_lines(found), *([] if remote is None else [_store(remote.counts)])]:
        click.echo(line)
    if options["json_file"] is not None:
        write_text(options["json_file"], json_text(_record(folder, found)))
        tell_written(options["json_file"])
    return 0


def _lines(found: Measured) -> list[str]:
    rate, cpu, limit = found.samples_per_s, found.cpu_ms_per_sample, found.decode_limit_cpu_ms
    rounds = f"{rate.count} rounds of {found.samples:,} samples, batches of {found.batch_size}, {found.threads} threads"
    lines = [
        f"{rate.value:,.0f} samples/s ({rate.low:,.0f} to {rate.high:,.0f}; {rounds})",
        f"{_ms(cpu.value)} of CPU time per sample ({_ms(cpu.low)} to {_ms(cpu.high)})",
    ]
    if found.lists_because is not None:
        lines.append(f"batches are lists of samples: {found.lists_because}")
    if limit is not None and found.times_limit is not None:
        times = found.times_limit
        lines.append(
            f"loading takes {times.value:.2f} times ({times.low:.2f} to {times.high:.2f}) the CPU time of decoding "
            f"alone, which is {_ms(limit.value)} ({_ms(limit.low)} to {_ms(limit.high)})"
        )
    whole = sum(stage.cpu_s for stage in found.stages)
    for stage in found.stages:
        share = units.percent(stage.cpu_s / whole) if whole else units.MISSING
        each = (
            f"{units.seconds(stage.cpu_s)} of CPU time per sample ({share}), {units.seconds(stage.wall_s)} of wall "
            f"time per sample in a thread"
        )
        lines.append(f"{stage.name}: {each}; {stage.samples:,} samples timed")
    return [*lines, *_of_cache(found)]


def _of_cache(found: Measured) -> list[str]:
    """Return lines on the contents of the cache; without a cache, on what one would cost and save."""
    use, offer = found.cache, found.offer
    if use is not None:
        trouble = f"; no more images are cached: {use.trouble}" if use.trouble else ""
        return [f"cache in {use.where}: {use.samples:,} decoded images, {units.size(use.bytes)}{trouble}"]
    if offer is None:
        return []
    return [
        f"a cache of decoded images would take {units.size(offer.bytes)} and, from the second epoch on, save "
        f"{units.seconds(offer.saves_cpu_s)} of the {units.seconds(offer.of_cpu_s)} of CPU time per sample",
        *_where(offer),
    ]


def _where(offer: CacheOffer) -> list[str]:
    free = {"ram": offer.free_memory_bytes, "disk": offer.free_disk_bytes}
    disk = f"on a disk that reads at least {units.size(offer.disk_bytes_per_s)}/s per thread"
    ways = {
        "ram": 'in memory: Loader(..., decoded_cache="ram")',
        "disk": f'{disk}: Loader(..., decoded_cache="DIR")',
    }
    fitting = [f"  {ways[name]}; {units.size(free[name] or 0)} are free" for name in offer.fits]
    return fitting or [
        "  the cache does not fit: it would take more than 40% of the free memory and of the free disk space"
    ]


def _store(counts: Counts) -> str:
    """Return a line on the requests to an object store."""
    return (
        f"object storage: {units.size(counts.bytes)} in {counts.requests:,} requests, {counts.repeated:,} of them "
        f"repeated; {counts.from_cache:,} blocks came from the cache, {counts.not_kept:,} could not be cached"
    )


def _ms(milliseconds: float) -> str:
    return units.seconds(milliseconds / 1e3)


def _record(folder: str, found: Measured) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": __version__,
        "dataset": folder,
        "samples": found.samples,
        "batch_size": found.batch_size,
        "threads": found.threads,
        "samples_per_s": found.samples_per_s.value,
        "cpu_ms_per_sample": found.cpu_ms_per_sample.value,
        "decode_limit_cpu_ms": found.decode_limit_cpu_ms.value if found.decode_limit_cpu_ms is not None else None,
        "times_decode_limit": found.times_limit.value if found.times_limit is not None else None,
        "decoded_cache": asdict(found.cache) if found.cache is not None else None,
        "decoded_cache_offer": asdict(found.offer) if found.offer is not None else None,
        "intervals": {
            name: _interval(value)
            for name, value in (
                ("samples_per_s", found.samples_per_s),
                ("cpu_ms_per_sample", found.cpu_ms_per_sample),
                ("decode_limit_cpu_ms", found.decode_limit_cpu_ms),
                ("times_decode_limit", found.times_limit),
            )
            if value is not None
        },
        "stages": [
            {
                "name": stage.name,
                "cpu_ms_per_sample": 1e3 * stage.cpu_s,
                "wall_ms_per_sample": 1e3 * stage.wall_s,
                "samples_timed": stage.samples,
            }
            for stage in found.stages
        ],
    }


def _interval(value: Around) -> dict[str, float]:
    return {"low": value.low, "high": value.high, "count": value.count}
