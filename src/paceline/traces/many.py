"""Captures of any number of ranks: each read and summarised by itself, on all cores, so that memory is bounded.

Only summaries come back from the processes that read, as MessagePack: a thousand ranks take what a thousand summaries
take, and at any time one capture a core.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec

from paceline.core.errors import UsageError
from paceline.hardware.operating_system import allowed_cores
from paceline.traces.changes import check_kernels
from paceline.traces.collectives import Matched, matched
from paceline.traces.content import NotACapture
from paceline.traces.stragglers import Straggler, stragglers
from paceline.traces.summary import RankTrace, Wanted, summaries_of

_SUFFIXES = (".json", ".json.gz", ".sqlite")
_ALONE = 2  # files that are read without further processes


@dataclass(frozen=True, kw_only=True)
class Traces:
    """All captures that were given."""

    files: Sequence[str]
    ranks: Sequence[RankTrace]
    matched: Matched
    stragglers: Sequence[Straggler]
    problems: Sequence[str]  # of files, of ranks, of what does not fit together


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What came of a file."""

    ranks: list[RankTrace]
    problem: str | None = None


_READ = msgspec.msgpack.Decoder(_Read)


def files_in(paths: Sequence[Path]) -> list[Path]:
    """Return the captures among files and in folders, ranks in the order of their numbers.

    Raises:
        UsageError: A path is not there, or a folder holds none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in path.rglob("*") if p.name.endswith(_SUFFIXES) and p.is_file()]
            if not inside:
                raise UsageError(
                    f"{path} contains no capture; the file names of captures end in {', '.join(_SUFFIXES)}"
                )
            found += sorted(inside, key=_natural)
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(f"there is no file or folder {path}; give capture files, or folders that contain captures")
    return list(dict.fromkeys(found))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Order names by the numbers in them: rank 10 comes after rank 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def read_all(
    files: Sequence[Path],
    wanted: Wanted,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Traces:
    """Read and summarise captures, and compare their ranks.

    Args:
        files: As `files_in` gives them.
        wanted: What of each.
        processes: That read side by side; None: one for each core.
        progress: Called with the files that are read, and all.

    Raises:
        NotACapture: Nothing of any file could be read.
        UsageError: A kernel is asked for that no rank has.
    """
    found: list[_Read] = []
    for one in _read(files, partial(_packed, wanted=wanted), processes or len(allowed_cores())):
        found.append(one)
        progress(len(found), len(files))
    broken = [one.problem for one in found if one.problem is not None]
    ranks, doubtful = _distinct([rank for one in found for rank in one.ranks])
    if not ranks:
        raise NotACapture("; ".join(broken))
    check_kernels(wanted.what_if, (kernel.name for rank in ranks for kernel in rank.kernels))
    together = {rank.rank: rank.calls for rank in ranks if rank.rank is not None}
    fitted = matched(together, {rank.rank: rank.host for rank in ranks if rank.rank is not None and rank.host})
    return Traces(
        files=[str(file) for file in files],
        ranks=ranks,
        matched=fitted,
        stragglers=stragglers(fitted.collectives, len(together)),
        problems=[
            *broken,
            *(problem for rank in ranks for problem in rank.problems),
            *doubtful,
            *_missing(ranks),
            *fitted.problems,
        ],
    )


def _read(files: Sequence[Path], one: Callable[[Path], bytes], processes: int) -> Iterator[_Read]:
    if len(files) <= _ALONE or processes == 1:
        yield from (_READ.decode(one(file)) for file in files)
        return
    with ProcessPoolExecutor(min(processes, len(files)), mp_context=get_context("spawn")) as pool:
        yield from map(_READ.decode, pool.map(one, files, chunksize=1))


def _packed(file: Path, wanted: Wanted) -> bytes:
    try:
        return msgspec.msgpack.encode(_Read(ranks=summaries_of(file, wanted)))
    except NotACapture as error:
        return msgspec.msgpack.encode(_Read(ranks=[], problem=str(error)))


def _distinct(ranks: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Return ranks in order; of a number that comes twice the later ones lose it, as one of both must be wrong."""
    found, problems = [], []
    doubled: set[str] = set()
    files: dict[int, str] = {}  # of several GPUs of one file all have its rank
    for rank in ranks:
        if rank.rank is not None and files.setdefault(rank.rank, rank.source) != rank.source:
            problems.append(
                f"{rank.source}: another file contains rank {rank.rank} already, so this file is not matched with "
                f"the other ranks"
            )
            rank = replace(rank, rank=None)
            doubled.add(rank.source)
        found.append(rank)
    unknown = {rank.source for rank in found if rank.rank is None and not rank.one_of_several} - doubled
    if unknown and len(found) > 1:
        which = f"{len(unknown)} files have" if len(unknown) > 1 else f"{next(iter(unknown))} has"
        problems.append(f"{which} no rank number, neither in the content nor in the file name")
    return sorted(found, key=lambda one: (one.rank is None, one.rank or 0)), problems


def _missing(ranks: Sequence[RankTrace]) -> list[str]:
    there = {rank.rank for rank in ranks if rank.rank is not None}
    told = [rank.world for rank in ranks if rank.world is not None]
    world = max(told, default=max(there, default=-1) + 1)
    absent = sorted(set(range(world)) - there)
    if not absent or len(there) < 2:
        return []
    shown = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
    return [f"{len(absent)} of {'' if told else 'at least '}{world} ranks are missing: {shown}"]
