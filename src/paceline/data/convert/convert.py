"""Converts a data set to shards. The whole is planned first; one process makes a shard and puts it in its place.

So a conversion that was interrupted goes on where it was, and what is there at the end is what was planned: samples are
mixed once, by a seed, so that blocks that are read in one piece hold samples from everywhere.
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
from paceline.data.format.contents import blocks_of, read_contents, read_shard_index, write_contents
from paceline.data.format.image_modes import column_mode
from paceline.data.format.index import has_gaps
from paceline.data.format.model import CONTENTS_FILE, Column, Contents, Payload, Sample, Shard
from paceline.data.order.counter_rng import key_of, permutation
from paceline.data.sources import BadSample, Source
from paceline.hardware.host import this_host
from paceline.hardware.operating_system import allowed_cores

_MIXED = 2  # what a seed is for
_OVERHEAD = 2048  # bytes of tar headers and padding of a sample, about
_LOOKED_AT = 64  # samples whose content is compared when a conversion is resumed
_OF_MEMORY, _LEAST_MEMORY = 8, 2 << 30  # samples that are held take this part of the memory, at most
_ROOM = 1.05  # of what is written, that has to be free on the disk

Numbers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to convert."""

    shard_bytes: int = 128 << 20
    seed: int | None = 0  # by which samples are mixed; None: they stay in their order
    verbatim: bool = False  # JPEGs as they are; else restart markers are put in, which changes no pixel
    on_error: Literal["raise", "skip"] = "raise"


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What came of it."""

    contents: Contents
    skipped: Sequence[str]  # samples that could not be read, with the reason
    resumed: int  # shards that were there already


@dataclass(frozen=True, kw_only=True)
class _Task:
    """One shard to be made."""

    number: int
    path: Path
    ids: Numbers
    options: Options
    threads: int


@dataclass(frozen=True, kw_only=True)
class _Workers:
    """The processes that convert."""

    processes: int
    lock: int  # descriptor of the file whose lock they hold
    progress: Callable[[int, int], None]


_Bundle = Sequence[_Task]  # shards that are made together, from samples that are read together


@dataclass(frozen=True, kw_only=True)
class _Made:
    """One shard that was made."""

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
    """Convert a data set.

    Args:
        source: What to convert.
        dest: A folder that is new, empty, or that of the same conversion, interrupted.
        options: How.
        processes: That work side by side.
        progress: Is told samples that are done, and all.
        changes: Returns how the files of the source differ from those that were listed; empty if they do not.

    Raises:
        UsageError: The folder holds something else, or the source changed meanwhile.
        BadSample: A sample cannot be read.
        EnvironmentFault: There is no room, or a process was killed.
    """
    plan, version = planned(source, options), source.version
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
                _check_unchanged(source, version, changes, dest)  # a file that is being written is no bad sample
                raise
            _check_unchanged(source, version, changes, dest)
        write_skipped(dest, done.skipped)
        contents = write_data_set(dest, done.contents)
        clear(dest)
    return replace(done, contents=contents)


def _check_unchanged(source: Source, version: str, changes: Callable[[], str], dest: Path) -> None:
    """Refuse a source of which a file changed, or that has other files than those that were listed."""
    changed = changes()
    if changed or source.version != version:
        raise UsageError(
            f"the source changed while it was converted{changed and f': {changed}'}; remove {dest}, and convert again "
            "when nothing writes to the source"
        )


def _converted(source: Source, dest: Path, options: Options, workers: _Workers, plan: Sequence[Numbers]) -> Converted:
    """Make the shards of a plan that are not there yet."""
    tasks = [
        _Task(number=number, path=dest / f"shard-{number:06d}.tar", ids=ids, options=options, threads=1)
        for number, ids in enumerate(plan)
    ]
    there = {task.number: found for task in tasks if (found := _finished(task)) is not None}
    if options.on_error == "raise":  # what another conversion has skipped is to be told now
        there = {number: found for number, found in there.items() if not found.skipped}
    left = [task for task in tasks if task.number not in there]
    threads = max(1, workers.processes // max(1, len(left)))
    made = dict(there)
    for one in _worked(source, [replace(task, threads=threads) for task in left], workers, len(source)):
        made[one.number] = one
    shards = [made[number].shard for number in sorted(made) if made[number].shard.samples]
    skipped = [text for number in sorted(made) for text in made[number].skipped]
    return Converted(contents=_described(source, shards, options), skipped=skipped, resumed=len(there))


def _complete(dest: Path, samples: int, options: Options) -> Converted | None:
    """Return a conversion that was killed after its last file was written, if its shards are as they were written."""
    if not (dest / CONTENTS_FILE).exists():
        return None
    contents = read_contents(dest)
    if contents.samples != samples and options.on_error == "raise":
        return None  # what another conversion has skipped is to be told now
    if not all(is_as_written(dest, shard) for shard in contents.shards):
        return None
    return Converted(contents=contents, skipped=read_skipped(dest), resumed=len(contents.shards))


def planned(source: Source, options: Options) -> list[Numbers]:
    """Part the numbers of all samples into shards of about the same size."""
    count = len(source)
    if not count:
        raise UsageError("there are no samples to convert")
    order = np.arange(count) if options.seed is None else permutation(key_of(options.seed, _MIXED), count)
    ends = np.cumsum(np.array(_sizes(source), np.int64)[order] + _OVERHEAD)
    parts = max(1, round(int(ends[-1]) / options.shard_bytes))
    edges = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
    return [part for part in np.split(order.astype(np.int64), edges) if len(part)]


def fingerprint(source: Source, options: Options) -> str:
    """Return a digest of what is converted and how: the same for the same."""
    columns = [(column.name, column.kind) for column in source.columns]
    same = replace(options, on_error="raise")  # one bad sample is no reason to begin anew
    digest = hashlib.sha256(repr((same, columns, len(source), source.version)).encode())
    for number in range(len(source)):
        digest.update(f"{source.name(number)}\0{source.size(number)}\0".encode("utf-8", "surrogateescape"))
    for number in np.linspace(0, max(0, len(source) - 1), min(len(source), _LOOKED_AT)).astype(int).tolist():
        digest.update(_content(source, number))
    return digest.hexdigest()


def _content(source: Source, number: int) -> bytes:
    """Return what stands for the content of a sample: a file may change and keep its size."""
    try:
        sample = source.sample(number)
    except BadSample as error:
        return f"bad: {error}".encode("utf-8", "surrogateescape")
    made = hashlib.sha256()
    for name, value in sorted(sample.items()):
        made.update(name.encode() + b"\0" + (value.data if isinstance(value, Payload) else repr(value).encode()))
    return made.digest()


def _look_at_the_empty(source: Source) -> None:
    """Read what is empty or not there: better now than after hours.

    Raises:
        BadSample: It cannot be read.
    """
    for number in range(len(source)):
        if not source.size(number):
            source.sample(number)


def _sizes(source: Source) -> list[int]:
    return [source.size(number) for number in range(len(source))]


def _check(dest: Path, mark: str) -> None:
    """Refuse a folder before anything is written, and name the data set that it holds."""
    if (dest / CONTENTS_FILE).exists() and not (dest / PLAN_FILE).exists():
        raise UsageError(f"{dest} holds a data set of {read_contents(dest).samples:,} samples; name another folder")
    check_folder(dest, mark)


def _check_space(dest: Path, size: int) -> None:
    """Refuse a disk that is too full for a conversion that begins."""
    free = shutil.disk_usage(dest).free
    if free < _ROOM * size and not has_notes(dest):
        raise EnvironmentFault(
            f"{dest} has {units.size(free)} free, and {units.size(_ROOM * size)} is needed; free some space"
        )


def _finished(task: _Task) -> _Made | None:
    """Return a shard that an earlier conversion has made; None if it has not, or its bytes are not those it wrote."""
    note = finished(task.path)
    if note is None:
        return None
    lost = len(task.ids) - note.shard.samples
    return _Made(number=task.number, shard=note.shard, skipped=note.skipped) if lost == len(note.skipped) else None


def _worked(source: Source, tasks: Sequence[_Task], workers: _Workers, whole: int) -> Iterator[_Made]:
    """Make shards side by side, each as soon as a process is free."""
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


_here: tuple[Source, Synchronized[int]] | None = None  # of a process that converts


def _prepare(source: Source, counter: Synchronized[int], lock: InheritedFile) -> None:
    global _here  # noqa: PLW0603 - a pool hands nothing else to its processes
    assert lock.descriptor  # this process holds the lock too, until it ends
    _here = source, counter
    end_with_parent()


def _bundles(source: Source, tasks: Sequence[_Task], processes: int) -> list[_Bundle]:
    """Put shards together that fit in memory, where the source is faster read in its own order; else each by itself."""
    if not getattr(source, "reads_groups", False):
        return [[task] for task in tasks]
    memory = this_host().memory_limit_bytes or _LEAST_MEMORY
    bytes_of_one = max(1, sum(_sizes(source)) * max(len(task.ids) for task in tasks) // max(1, len(source)))
    together = max(1, min(memory // (_OF_MEMORY * processes * bytes_of_one), -(-len(tasks) // processes)))
    return [tasks[begin : begin + together] for begin in range(0, len(tasks), together)]


def _made_here(bundle: _Bundle) -> list[_Made]:
    assert _here is not None  # `_prepare` has run
    source, counter = _here

    def count(_: int) -> None:
        with counter.get_lock():
            counter.value += 1

    return list(_make_all(source, bundle, count))


def _make_all(source: Source, bundle: _Bundle, told: Callable[[int], None]) -> Iterator[_Made]:
    """Write the shards of a bundle. If the source is read in groups, read all samples first, in the order of groups."""
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
    """Make a shard; samples are read by threads, unless they were read before, and written in order."""
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

    # Threads that read end here, not when the garbage collector comes to them: it may come while a thread is started,
    # and ending threads at that moment waits for itself (threading._shutdown_locks_lock).
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
    """Write what makes a folder of shards a data set, and return what it says."""
    contents = replace(contents, columns=_completed(folder, contents))
    write_contents(folder, contents, all_blocks(folder, contents))
    return contents


def _completed(folder: Path, contents: Contents) -> list[Column]:
    """Return the columns with what is known of them at the end: the mode of images, and whether samples lack one."""
    modes: dict[str, set[str]] = {column.name: set() for column in contents.columns if column.kind == "image"}
    gaps: set[str] = set()
    for shard in contents.shards:
        index = read_shard_index(folder, shard.file, shard.index)
        gaps.update(column.name for column in contents.columns if has_gaps(index, column))
        for name, found in modes.items():
            found.update(one.decode() for one in np.unique(index.arrays[f"{name}.mode"]).tolist())
    return [
        replace(column, mode=column_mode(modes.get(column.name, ())), optional=column.name in gaps)
        for column in contents.columns
    ]


def all_blocks(folder: Path, contents: Contents) -> NDArray[np.void]:
    """Cut all shards into blocks."""
    columns = [column.name for column in contents.columns if not column.is_number]
    made, first = [], 0
    for number, shard in enumerate(contents.shards):
        made.append(blocks_of(number, first, read_shard_index(folder, shard.file, shard.index), columns))
        first += shard.samples
    return np.concatenate(made)


def cores() -> int:
    """Return the cores that this process may run on."""
    return len(allowed_cores())
