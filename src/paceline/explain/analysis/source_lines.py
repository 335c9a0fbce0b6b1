"""The lines of source around the functions that a report names.

A record contains a function as ``augment (train.py:31)``, with the path of its file. The lines are read when the run is
explained, immediately after the run or later. If a file changed after the run started, its name is shown but no lines.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from paceline.explain.model import Finding, SourceLines
from paceline.record.run import JsonObject, Run

AROUND = 4  # number of lines before and after the named line
MAX_FUNCTIONS = 12
MAX_LINE = 200  # characters
MAX_FILE = 2_000_000  # bytes
_SUFFIXES = (".py", ".pyx")  # files with other suffixes are never quoted
_HEAD = re.compile(r"\s*(def|class|async def|@)\b|\s*@")
_LINE = re.compile(r":(\d+)\)$")


def source_lines(run: Run, findings: Sequence[Finding], functions: Iterable[str]) -> dict[str, SourceLines]:
    """Return the source around each function that is listed or that a finding names, if the source can be read."""
    files = _files(run)
    listed = set(functions)
    texts = [text for finding in findings for text in _texts(finding)]
    named = [name for name in files if name in listed or any(name in text for text in texts)]
    read = ((name, _read(name, files[name], run)) for name in named[:MAX_FUNCTIONS])
    return {name: found for name, found in read if found is not None}


def _texts(finding: Finding) -> Iterator[str]:
    yield finding.summary
    yield from (one.text for one in finding.evidence)
    yield from (one.change for one in finding.remedies)


def _files(run: Run) -> Mapping[str, str]:
    """Return the file of every function in the record. A name that belongs to two files is left out."""
    found: dict[str, set[str]] = {}
    for entry in _entries(run):
        if entry.get("file"):
            found.setdefault(str(entry["function"]), set()).add(str(entry["file"]))
    return {name: next(iter(files)) for name, files in found.items() if len(files) == 1}


def _entries(run: Run) -> Iterator[JsonObject]:
    for rank in run.ranks:
        yield from rank.summary.get("hot") or ()
        yield from rank.summary.get("syncs") or ()
    for worker in run.workers:
        yield from worker.last.get("hot") or ()


def _read(name: str, file: str, run: Run) -> SourceLines | None:
    number = _LINE.search(name)
    path = Path(run.launches[0].cwd if run.launches else "", file)
    if number is None or path.suffix not in _SUFFIXES:
        return None
    marked = int(number[1])
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE:
            return None
        started_unix_s = min((launch.started_unix_s for launch in run.launches), default=math.inf)
        changed = path.stat().st_mtime > started_unix_s
        lines = [] if changed else path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    if marked > len(lines) and not changed:
        return None
    first, last = _around(lines, marked) if lines else (marked, marked)
    around = _dedented(lines[first - 1 : last]) if lines else []
    return SourceLines(file=file, marked=marked, first=first, lines=around, changed=changed)


def _around(lines: Sequence[str], marked: int) -> tuple[int, int]:
    """Return the first and the last line to show: at most 4 lines around the marked line, within its function."""
    before = range(marked - 1, max(0, marked - 1 - AROUND), -1)
    after = range(marked + 1, min(len(lines), marked + AROUND) + 1)
    inside = _indent(lines[marked - 1])
    heads = (n for n in before if _HEAD.match(lines[n - 1]) and _indent(lines[n - 1]) < inside)
    ends = (n - 1 for n in after if _HEAD.match(lines[n - 1]) and _indent(lines[n - 1]) < inside)
    first = next(heads, max(1, marked - AROUND))
    last = next(ends, min(len(lines), marked + AROUND))
    while first < marked and not lines[first - 1].strip():
        first += 1
    while last > marked and not lines[last - 1].strip():
        last -= 1
    return first, last


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _dedented(lines: Sequence[str]) -> list[str]:
    text = textwrap.dedent("\n".join(line.expandtabs(4) for line in lines))
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]} …" for line in text.split("\n")]
