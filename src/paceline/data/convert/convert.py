"""Conversion of a dataset to shards. The samples of each shard are planned first; then each process writes shards.

So an interrupted conversion can be resumed, with the same result. Samples are shuffled once, by a seed, so that the
blocks that a loader reads in one piece contain samples from the whole dataset.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.core import units
from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.convert.resuming import (
    PLAN_FILE,
    InheritedFile,
    Note,
    alone_in,
    check_folder,
    clear,
    end_with_parent,
    finished,
    has_notes,
    is_as_written,
    write_note,
)
from paceline.data.convert.sample_reading import read_samples
from paceline.data.convert.shard_writer import write_shard
from paceline.data.convert.skipped_samples import read_skipped, write_skipped
from paceline.data.format.contents import blocks_of, check_classes, read_contents, read_shard_index, write_contents
from paceline.data.format.image_modes import EACH, column_mode, joint_palette, palette_of
from paceline.data.format.index import has_gaps
from paceline.data.format.model import CONTENTS_FILE, Column, Contents, Payload, Sample, Shard
from paceline.data.order.counter_rng import key_of, permutation
from paceline.data.sources import BadSample, Source
from paceline.hardware.host import this_host
from paceline.hardware.operating_system import allowed_cores

_MIXED = 2  # the purpose of the random numbers, part of their key
_OVERHEAD = 2048  # the approximate bytes of a sample's tar headers and padding
_LOOKED_AT = 64  # samples whose content is compared when a conversion is resumed
_OF_MEMORY, _LEAST_MEMORY = 8, 2 << 30  # held samples use at most 1/8 of the memory limit, or of 2 GiB if it is unknown
_ROOM = 1.05  # the free space on the disk, relative to the source's bytes

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a conversion."""

    shard_bytes: int = 128 << 20
    seed: int | None = 0  # of the shuffle; None keeps the order of the source
    verbatim: bool = False  # store JPEGs unchanged, without adding restart markers
    on_error: Literal["raise", "skip"] = "raise"


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The result of a conversion."""

    contents: Contents
    skipped: Sequence[str]  # samples that could not be read, with the reason
    resumed: int  # the number of shards kept from an interrupted conversion


@dataclass(frozen=True, kw_only=True)
class _Task:
    """The task to write one shard."""

    number: int
    path: Path
    ids: Numbers
    options: Options
    threads: int


@dataclass(frozen=True, kw_only=True)
class _Workers:
    """The number of processes, the lock that they inherit, and the function that reports their progress."""

    processes: int
    lock: int  # the descriptor of the locked plan file
    progress: Callable[[int, int], None]


_Bundle = Sequence[_Task]  # shards that are written together, after reading all their samples


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A finished shard."""

    number: int
    shard: Shard
    skipped: Sequence[str]


def convert(
    source: Source,
    dest: Path,
    options: Options,
    processes: int,
    progress: Callable[[int, int], None],
    changes: Callable[[], str] = lambda: "",
) -> Converted:
    """Convert a dataset to shards.

    Args:
        source: The dataset.
        dest: A new or empty folder, or the folder of the same interrupted conversion.
        options: The options.
        processes: The number of processes.
        progress: Is called with the number of converted samples and of all samples.
        changes: Returns how the files of the source differ from those that were listed; empty if they do not.

    Returns:
        The description of the dataset, the skipped samples, and the number of resumed shards.

    Raises:
        UsageError: The folder has other content, there are no samples, or the source changed meanwhile.
        BadSample: A sample cannot be read, and bad samples are not skipped.
        EnvironmentFault: There is too little space, or a process was killed.
    """
    plan, version = planned(source, options), source.version
    check_classes(source.classes)
    if options.on_error == "raise":
        _look_at_the_empty(source)
    _check(dest, mark := fingerprint(source, options))
    with alone_in(dest, mark) as lock:
        done = _complete(dest, len(source), options)
        if done is None:
            _check_space(dest, sum(_sizes(source)))
            workers = _Workers(processes=processes, lock=lock, progress=progress)
            try:
                done = _converted(source, dest, options, workers, plan)
            except BadSample:
                _check_unchanged(source, version, changes, dest)  # a file that is being written is not a bad sample
                raise
            _check_unchanged(source, version, changes, dest)
        write_skipped(dest, done.skipped)
        contents = write_data_set(dest, done.contents)
        clear(dest)
    return replace(done, contents=contents)


def _check_unchanged(source: Source, version: str, changes: Callable[[], str], dest: Path) -> None:
    """Check that the source has the same files as before, and that none has changed.

    Raises:
        UsageError: The source has changed.
    """
    changed = changes()
    if changed or source.version != version:
        raise UsageError(
            f"the source changed while it was converted{changed and f': {changed}'}; remove {dest}, and convert again "
            "when nothing writes to the source"
        )


def _converted(source: Source, dest: Path, options: Options, workers: _Workers, plan: Sequence[Numbers]) -> Converted:
    """Write the unfinished shards of a plan, and return the result of the whole conversion."""
    tasks = [
        _Task(number=number, path=dest / f"shard-{number:06d}.tar", ids=ids, options=options, threads=1)
        for number, ids in enumerate(plan)
    ]
    there = {task.number: found for task in tasks if (found := _finished(task)) is not None}
    if options.on_error == "raise":  # samples that were skipped before must raise an error now
        there = {number: found for number, found in there.items() if not found.skipped}
    left = [task for task in tasks if task.number not in there]
    threads = max(1, workers.processes // max(1, len(left)))
    made = dict(there)
    for one in _worked(source, [replace(task, threads=threads) for task in left], workers, len(source)):
        made[one.number] = one
    shards = [made[number].shard for number in sorted(made) if made[number].shard.samples]
    skipped = [text for number in sorted(made) for text in made[number].skipped]
    if not shards:
        raise UsageError(f"none of the {len(skipped):,} samples can be read; the first: {skipped[0]}")
    return Converted(contents=_described(source, shards, options), skipped=skipped, resumed=len(there))


def _complete(dest: Path, samples: int, options: Options) -> Converted | None:
    """Return the result of a conversion that was killed after its last file was written, if its shards are intact."""
    if not (dest / CONTENTS_FILE).exists():
        return None
    contents = read_contents(dest)
    if contents.samples != samples and options.on_error == "raise":
        return None  # samples that were skipped before must raise an error now
    if not all(is_as_written(dest, shard) for shard in contents.shards):
        return None
    return Converted(contents=contents, skipped=read_skipped(dest), resumed=len(contents.shards))


def planned(source: Source, options: Options) -> list[Numbers]:
    """Return the sample numbers of each shard, in order; shards have about the same size.

    Raises:
        UsageError: There are no samples.
    """
    count = len(source)
    if not count:
        raise UsageError("there are no samples to convert")
    order = np.arange(count) if options.seed is None else permutation(key_of(options.seed, _MIXED), count)
    ends = np.cumsum(np.array(_sizes(source), np.int64)[order] + _OVERHEAD)
    parts = max(1, round(int(ends[-1]) / options.shard_bytes))
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
    return [part for part in np.split(order.astype(np.int64), edges) if len(part)]


def fingerprint(source: Source, options: Options) -> str:
    """Return a SHA-256 that identifies the conversion: source, options, and the content of some samples."""
    columns = [(column.name, column.kind) for column in source.columns]
    same = replace(options, on_error="raise")  # a conversion with a bad sample may be resumed with "skip"
    digest = hashlib.sha256(repr((same, columns, len(source), source.version)).encode())
    for number in range(len(source)):
        digest.update(f"{source.name(number)}\0{source.size(number)}\0".encode("utf-8", "surrogateescape"))
    for number in np.linspace(0, max(0, len(source) - 1), min(len(source), _LOOKED_AT)).astype(int).tolist():
        digest.update(_content(source, number))
    return digest.hexdigest()


def _content(source: Source, number: int) -> bytes:
    """Return a digest of the content of a sample, because a file can change and keep its size."""
    try:
        sample = source.sample(number)
    except BadSample as error:
        return f"bad: {error}".encode("utf-8", "surrogateescape")
    made = hashlib.sha256()
    for name, value in sorted(sample.items()):
        made.update(name.encode() + b"\0" + (value.data if isinstance(value, Payload) else repr(value).encode()))
    return made.digest()


def _look_at_the_empty(source: Source) -> None:
    """Read all empty and missing samples first, so that the conversion fails at once and not after hours.

    Raises:
        BadSample: A sample cannot be read.
    """
    for number in range(len(source)):
        if not source.size(number):
            source.sample(number)


def _sizes(source: Source) -> list[int]:
    return [source.size(number) for number in range(len(source))]


def _check(dest: Path, mark: str) -> None:
    """Check the destination before anything is written.

    Raises:
        UsageError: The folder has a dataset or other content.
    """
    if (dest / CONTENTS_FILE).exists() and not (dest / PLAN_FILE).exists():
        raise UsageError(f"{dest} holds a data set of {read_contents(dest).samples:,} samples; name another folder")
    check_folder(dest, mark)


def _check_space(dest: Path, size: int) -> None:
    """Check that the disk has enough free space; a resumed conversion is not checked.

    Raises:
        EnvironmentFault: There is too little space.
    """
    free = shutil.disk_usage(dest).free
    if free < _ROOM * size and not has_notes(dest):
        raise EnvironmentFault(
            f"{dest} has {units.size(free)} free, and {units.size(_ROOM * size)} is needed; free some space"
        )


def _finished(task: _Task) -> _Made | None:
    """Return the shard of a task if an interrupted conversion has finished it and it is unchanged, else None."""
    note = finished(task.path)
    if note is None:
        return None
    lost = len(task.ids) - note.shard.samples
    return _Made(number=task.number, shard=note.shard, skipped=note.skipped) if lost == len(note.skipped) else None


def _worked(source: Source, tasks: Sequence[_Task], workers: _Workers, whole: int) -> Iterator[_Made]:
    """Write shards in several processes, and yield them in the order in which they are finished."""
    processes, progress = workers.processes, workers.progress
    done = whole - sum(len(task.ids) for task in tasks)
    progress(done, whole)
    if not tasks:  # the conversion was interrupted after its last shard
        return
    if processes == 1 or len(tasks) == 1:
        for bundle in _bundles(source, tasks, 1):
            yield from _make_all(source, bundle, lambda count, before=done: progress(before + count, whole))  # type: ignore[misc]
            done += sum(len(task.ids) for task in bundle)
        return
    context = get_context("spawn")
    counter = context.Value("q", 0)
    bundles = _bundles(source, tasks, processes)
    inherited = InheritedFile(workers.lock)
    with ProcessPoolExecutor(
        min(processes, len(bundles)), mp_context=context, initializer=_prepare, initargs=(source, counter, inherited)
    ) as pool:
        futures = {pool.submit(_made_here, bundle) for bundle in bundles}
        try:
            for future in as_completed(futures):
                yield from future.result()
                progress(min(whole, done + counter.value), whole)
        except BrokenProcessPool as error:
            raise EnvironmentFault(
                "a process that converts was killed, perhaps because memory ran out; repeat the command with fewer "
                "--processes, it continues where it was"
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


_here: tuple[Source, Synchronized[int]] | None = None  # in a worker process: the source, and the counter of samples


def _prepare(source: Source, counter: Synchronized[int], lock: InheritedFile) -> None:
    global _here  # noqa: PLW0603 - the pool passes no other arguments
    assert lock.descriptor  # this process holds the lock too, until its end
    _here = source, counter
    end_with_parent()


def _bundles(source: Source, tasks: Sequence[_Task], processes: int) -> list[_Bundle]:
    """Return groups of shards that fit in memory if the source reads faster in its own order, else single shards."""
    if not getattr(source, "reads_groups", False):
        return [[task] for task in tasks]
    memory = this_host().memory_limit_bytes or _LEAST_MEMORY
    bytes_of_one = max(1, sum(_sizes(source)) * max(len(task.ids) for task in tasks) // max(1, len(source)))
    together = max(1, min(memory // (_OF_MEMORY * processes * bytes_of_one), -(-len(tasks) // processes)))
    return [tasks[begin : begin + together] for begin in range(0, len(tasks), together)]


def _made_here(bundle: _Bundle) -> list[_Made]:
    assert _here is not None  # set by `_prepare`
    source, counter = _here

    def count(_: int) -> None:
        with counter.get_lock():
            counter.value += 1

    return list(_make_all(source, bundle, count))


def _make_all(source: Source, bundle: _Bundle, told: Callable[[int], None]) -> Iterator[_Made]:
    """Write the shards of a bundle.

    If the source is read in groups, read all samples first, in the order of the source.
    """
    if not getattr(source, "reads_groups", False):
        yield from (_make(source, task, told, None) for task in bundle)
        return
    ids, first = np.sort(np.concatenate([task.ids for task in bundle])), bundle[0]
    counts = iter(range(1, len(ids) + 1))
    held = {}
    with closing(read_samples(source, ids, first.threads, verbatim=first.options.verbatim)) as pairs:
        for number, sample in pairs:
            held[number] = sample
            told(next(counts))
    yield from (_make(source, task, lambda _: None, held) for task in bundle)


def _make(
    source: Source, task: _Task, told: Callable[[int], None], held: dict[int, Sample | BadSample] | None
) -> _Made:
    """Write a shard with its samples in order; threads read the samples, unless they are in memory (`held`)."""
    skipped: list[str] = []
    ids: list[int] = task.ids.tolist()

    def read() -> Generator[tuple[int, Sample | BadSample], None, None]:
        if held is None:
            with closing(read_samples(source, task.ids, task.threads, verbatim=task.options.verbatim)) as pairs:
                yield from pairs
        else:
            yield from ((one, held.pop(one)) for one in ids)

    def samples() -> Generator[tuple[str, str, Sample], None, None]:
        kept = 0
        with closing(read()) as pairs:
            for count, (number, made) in enumerate(pairs, 1):
                told(count)
                if isinstance(made, BadSample):
                    if task.options.on_error == "raise":
                        raise made
                    skipped.append(str(made))
                    continue
                yield f"{task.number:06d}{kept:07d}", source.name(number), made
                kept += 1

    # The reader threads must end here, not in the garbage collector: it may run while a thread is being started, and
    # then joining threads is a deadlock (threading._shutdown_locks_lock).
    with closing(samples()) as made:
        shard = write_shard(task.path, source.columns, made)
    write_note(task.path.parent, Note(shard=shard, skipped=skipped))
    return _Made(number=task.number, shard=shard, skipped=skipped)


def _described(source: Source, shards: Sequence[Shard], options: Options) -> Contents:
    made: dict[str, str | int | bool] = {"verbatim": options.verbatim, "mixed": options.seed is not None}
    if options.seed is not None:
        made["seed"] = options.seed
    samples = sum(shard.samples for shard in shards)
    return Contents(samples=samples, columns=source.columns, shards=shards, classes=source.classes, made=made)


def write_data_set(folder: Path, contents: Contents) -> Contents:
    """Write the description and table of blocks of a folder of shards, and return the description."""
    contents = replace(contents, columns=_completed(folder, contents))
    write_contents(folder, contents, all_blocks(folder, contents))
    return contents


def _completed(folder: Path, contents: Contents) -> list[Column]:
    """Return the columns with the mode of images and whether values are missing, from the indexes of all shards."""
    modes: dict[str, set[str]] = {column.name: set() for column in contents.columns if column.kind == "image"}
    gaps: set[str] = set()
    for shard in contents.shards:
        index = read_shard_index(folder, shard.file, shard.index)
        gaps.update(column.name for column in contents.columns if has_gaps(index, column))
        for name, found in modes.items():
            found.update(one.decode() for one in np.unique(index.arrays[f"{name}.mode"]).tolist())
    return [
        replace(
            column,
            mode=column_mode(modes.get(column.name, ())),
            palette=_palette(folder, contents.shards, column.name)
            if modes.get(column.name, set()) - {""} == {"P"}
            else "",
            optional=column.name in gaps,
        )
        for column in contents.columns
    ]


def _palette(folder: Path, shards: Sequence[Shard], name: str) -> str:
    """Return the common palette of the images of a column, or `EACH`."""
    found = ""
    for shard in shards:
        arrays = read_shard_index(folder, shard.file, shard.index).arrays
        with (folder / shard.file).open("rb") as file:
            for offset, length in zip(
                arrays[f"{name}.offset"].tolist(), arrays[f"{name}.length"].tolist(), strict=True
            ):
                file.seek(offset)
                found = joint_palette(found, palette_of(file.read(length)))
                if found == EACH:
                    return found
    return found


def all_blocks(folder: Path, contents: Contents) -> NDArray[np.void]:
    """Return the table of blocks of all shards."""
    columns = [column.name for column in contents.columns if not column.is_number]
    made, first = [], 0
    for number, shard in enumerate(contents.shards):
        made.append(blocks_of(number, first, read_shard_index(folder, shard.file, shard.index), columns))
        first += shard.samples
    return np.concatenate(made)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(allowed_cores())
