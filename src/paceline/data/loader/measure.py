"""Measurement of the speed of reading a dataset, alternating with decoding alone as the limit."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from paceline.data.batches.faults import UnequalSamples
from paceline.data.batches.picture_batches import in_turn
from paceline.data.format.jpeg import JpegFrame
from paceline.data.loader.loader import Loader
from paceline.data.loader.report import StageCost
from paceline.data.loader.spec import picture_column
from paceline.data.order.counter_rng import key_of, uniforms
from paceline.data.reading.cache_offer import CacheOffer
from paceline.data.reading.crops import Crop, antialiases
from paceline.data.reading.decoded_cache import CacheUse
from paceline.data.reading.jpeg_parts import Parts, parts_of
from paceline.data.reading.pictures import Box, libraries, resize_into
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.reading.token_dataset import TokenDataset

_LEAST_JPEGS = 0.8  # least share of JPEGs, which are the only images with which decoding alone is measured
_LIMIT_PICTURES = 512  # with which the cost of decoding alone is measured
_POLL_S = 0.004
_IDLE_CORES = 0.1  # fewer busy cores mean that nothing is made ahead any more
_LONGEST_S = 5.0  # the longest wait for that, as other threads may be busy


@dataclass(frozen=True, kw_only=True)
class Around:
    """The median, minimum and maximum of a value over several rounds."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured cost of reading."""

    samples: int  # in a round
    batch_size: int
    threads: int
    samples_per_s: Around
    cpu_ms_per_sample: Around  # of the whole process
    decode_limit_cpu_ms: Around | None  # CPU time per JPEG of decoding and resizing alone; None for other data
    times_limit: Around | None  # `cpu_ms_per_sample` / `decode_limit_cpu_ms`, per round
    stages: Sequence[StageCost]
    cache: CacheUse | None
    offer: CacheOffer | None
    lists_because: str | None = None  # why batches are lists of samples instead of tensors


@dataclass(frozen=True, kw_only=True)
class Round:
    """The number of samples, the wall time and the CPU time of one round."""

    samples: int
    wall_s: float
    cpu_s: float


def measure(
    dataset: ShardedDataset | TokenDataset,
    crop: Crop | None,
    *,
    batch_size: int,
    samples: int,
    rounds: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **settings: Any,
) -> Measured:
    """Read a dataset in several rounds, each followed by a measurement of decoding alone.

    As in training, one epoch follows the other, and batches made ahead in one round are used in the next. A round
    begins and ends when as many batches as allowed are made ahead, so it makes as many batches as it takes.

    Args:
        dataset: The dataset.
        crop: The crop of images; None reads whole samples.
        batch_size: The samples of a batch.
        samples: The approximate number of samples in a round, at most an epoch.
        rounds: The number of rounds.
        progress: Is called with the number of finished rounds and of all rounds.
        settings: Settings of the loader.
    """
    batch_size = min(batch_size, len(dataset))

    def measured(collate: Callable[[list[Any]], Any] | None) -> Measured:
        loader = Loader(dataset, batch_size, True, crop, collate, ends="drop", **settings)  # whole batches
        with closing(loader):
            return _measured(loader, crop, samples, rounds, progress, decoded_cache=bool(settings.get("decoded_cache")))

    try:
        return measured(None)
    except UnequalSamples as error:
        return replace(measured(list), lists_because=str(error).partition(";")[0])


def _measured(
    loader: Loader,
    crop: Crop | None,
    samples: int,
    rounds: int,
    progress: Callable[[int, int], None],
    *,
    decoded_cache: bool,
) -> Measured:
    """Run the rounds of `measure` with a loader."""
    batch_size, dataset = loader.batch_size, loader.dataset
    pictures = _limit_of(dataset, crop) if isinstance(dataset, ShardedDataset) else None
    steps = max(1, min(len(loader), samples // batch_size))
    taken = endless(loader)
    read_round(taken, batch_size, len(loader) if decoded_cache else steps)  # warm-up: allocates memory and fills caches
    loader.forget_report()
    found: list[Round] = []
    limits: list[float] = []
    for number in range(rounds):
        progress(number, rounds)
        found.append(read_round(taken, batch_size, steps))
        if pictures is not None:
            limits.append(pictures(max(1, loader.threads)))
    report = loader.report()
    taken.close()
    each_ms = [1e3 * one.cpu_s / one.samples for one in found]
    return Measured(
        samples=found[0].samples,
        batch_size=batch_size,
        threads=report.threads,
        samples_per_s=around([one.samples / one.wall_s for one in found]),
        cpu_ms_per_sample=around(each_ms),
        decode_limit_cpu_ms=around(limits) if limits else None,
        times_limit=around([own / limit for own, limit in zip(each_ms, limits, strict=True)]) if limits else None,
        stages=report.stages,
        cache=report.cache,
        offer=report.offer,
    )


def endless(loader: Loader) -> Generator[Any]:
    """Yield the batches of one epoch after the other, without end."""
    while True:
        yield from loader


def read_round(taken: Iterator[Any], batch_size: int, steps: int) -> Round:
    """Take `steps` batches, and return the wall and CPU time."""
    settled()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in islice(taken, steps):
        pass
    busy_until = settled()
    return Round(samples=steps * batch_size, wall_s=busy_until - wall, cpu_s=time.process_time() - cpu)


def settled() -> float:
    """Wait until the threads of this process are idle; return the `perf_counter` time at which they became idle."""
    begun = since = time.perf_counter()
    spent = time.process_time()
    while since - begun < _LONGEST_S:
        time.sleep(_POLL_S)
        now, cpu = time.perf_counter(), time.process_time()
        if cpu - spent < _IDLE_CORES * (now - since):
            break
        since, spent = now, cpu
    return since


def around(values: Sequence[float]) -> Around:
    """Return the median, minimum and maximum of the values of the rounds."""
    return Around(value=statistics.median(values), low=min(values), high=max(values), count=len(values))


def _limit_of(dataset: ShardedDataset, crop: Crop | None) -> Callable[[int], float] | None:
    """Return a function that measures the CPU time per image, in ms, of decoding and resizing alone.

    The function gets a number of threads, the same as the loader's, because cores that share a cache or arithmetic
    units slow each other down. Without a crop, or if less than four fifths of the samples are JPEGs, None is returned.
    """
    column = picture_column(dataset)
    if column is None or crop is None:
        return None
    cut = _pictures(dataset, column, crop)
    if len(cut) < _LEAST_JPEGS * min(_LIMIT_PICTURES, len(dataset)):
        return None

    def decoded(threads: int) -> float:
        with ThreadPoolExecutor(threads) as pool:
            spent = sum(pool.map(lambda _: _decoded(cut, crop), range(threads)))
        return 1e3 * spent / (max(1, len(cut)) * threads)

    return decoded


def _decoded(cut: Sequence[_Cut], crop: Crop) -> float:
    """Decode and resize images, and return the CPU time in seconds."""
    jpeg, cv2 = libraries()
    slot, antialias = np.empty((crop.size, crop.size, 3), np.uint8), antialiases(crop)
    scratch = np.empty(max((one.pixels for one in cut), default=1), np.uint8)
    begun = time.thread_time()
    for one in cut:
        strip = jpeg.decode_jpeg(one.data, "RGB", fastdct=True, fastupsample=True, buffer=scratch)
        box = one.box
        part = strip[box.top : box.top + box.height, box.left : box.left + box.width]
        resize_into(slot, part, cv2, antialias=antialias)
    return time.thread_time() - begun


@dataclass(frozen=True)
class _Cut:
    """A JPEG with the part of an image that a crop needs, and the crop's box in that part."""

    data: bytes
    box: Box
    pixels: int  # the bytes of the decoded JPEG


def _pictures(dataset: ShardedDataset, column: str, crop: Crop) -> list[_Cut]:
    """Return JPEGs of known size, spread over the dataset, or from its start if the dataset is in a store."""
    count = min(_LIMIT_PICTURES, len(dataset))
    last = count if dataset.remote is not None else len(dataset)  # neighbouring samples are fetched together
    ids = np.linspace(0, last - 1, count).astype(np.int64)
    places = dataset.places(ids)
    told = dataset.gathered(column, JpegFrame._fields, places)
    frames = JpegFrame(*(told[key].astype(np.int64) for key in JpegFrame._fields))
    drawn = uniforms(key_of(0), ids, crop.draws)
    boxes = crop.boxes(np.maximum(frames.height, 1), np.maximum(frames.width, 1), drawn)
    parts = parts_of(frames, dataset.intervals(column, places), boxes, beyond=False)
    files = [dataset.payload(column, place) for place in places]
    whole = (3 * frames.height * frames.width).tolist()
    return [
        _cut(data, parts, picture, box, whole[picture])
        for picture, (data, box) in enumerate(zip(files, in_turn(boxes), strict=True))
        if whole[picture] and data[:2] == b"\xff\xd8"
    ]


def _cut(data: bytes, parts: Parts, picture: int, box: Box, whole: int) -> _Cut:
    if not parts.cut[picture]:
        return _Cut(data, box, whole)
    moved = box._replace(top=parts.tops[picture], left=parts.lefts[picture])
    return _Cut(bytes(parts.alone(picture, memoryview(data))), moved, 3 * parts.pixels[picture])
