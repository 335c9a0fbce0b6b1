"""Kill a conversion before and after each of its effects on files, and run it again: does the same data set result?

    python -m tests.data.kill_points SOURCE CASE FOLDER [STEP]

The conversion runs in a forked child. An audit hook counts its effects below the destination (open for writing,
rename, remove, make a folder) and stops the child at the effect with the given number:

    before       the effect did not happen
    empty        a file was just opened for writing: it is there, and empty
    half         a file is about to be renamed, and only its first half was written

The script prints faults as JSON. STEP is the distance between the effects that are tried. Cases:

    kill         the command is repeated
    change       the source changes, then the command is repeated
    two          the child is stopped, a second conversion runs and is killed too, then the first goes on
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from paceline.core.errors import UsageError
from paceline.data.convert import resuming
from paceline.data.convert.convert import Options, convert
from paceline.data.convert.token_shards import write_tokens
from paceline.data.format.tokens import ByteTokenizer
from paceline.data.sources import text
from paceline.data.sources.image_folder import image_folder
from paceline.data.sources.text import documents, fingerprint

HOW = ("before", "empty", "half")
DONE, REFUSED, FAILED = 0, 2, 3


def picture(seed: int) -> bytes:
    """A PNG of noise, as long as any other."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 20, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_pictures(folder: Path) -> None:
    for number in range(6):
        path = folder / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))


def make_text(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.txt").write_text(str(number) * 5000)


def convert_pictures(source: Path, dest: Path) -> None:
    convert(image_folder(source), dest, Options(shard_bytes=1 << 13), 1, lambda done, total: None)


def convert_text(source: Path, dest: Path) -> None:
    write_tokens(dest, documents(source), ByteTokenizer(), 4000, fingerprint(source, "bytes"))


SOURCES = {"pictures": (make_pictures, convert_pictures), "text": (make_text, convert_text)}


def stop_at(dest: Path, number: int, how: str, told: int, sent: signal.Signals) -> None:
    """Send this process a signal at an effect on files below a folder, and write its name to `told`."""
    seen = 0
    inside = False

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen, inside
        if inside or event not in ("open", "os.rename", "os.remove", "os.mkdir"):
            return
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
        writes = event != "open" or bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
        if not writes or not path.startswith(str(dest)):
            return
        if {"empty": "open", "half": "os.rename"}.get(how, event) != event:
            return
        seen += 1
        if seen <= number:
            return
        inside = True
        if how == "empty":
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        elif how == "half":
            os.truncate(path, os.path.getsize(path) // 2)
        os.write(told, f"{how} {event} {os.path.basename(path)}".encode())
        os.kill(os.getpid(), sent)
        inside, seen = False, -1 << 40

    sys.addaudithook(watch)


def in_child(work: Callable[[], None], prepare: Callable[[int], None] = lambda told: None) -> tuple[int, int]:
    """Run something in a forked child; return its process id, and a pipe with the effect it stopped at or its error."""
    there, told = os.pipe()
    child = os.fork()
    if child:
        os.close(told)
        return child, there
    code = FAILED
    try:
        prepare(told)
        work()
        code = DONE
    except UsageError as error:
        os.write(told, f"refused: {error}".encode())
        code = REFUSED
    except BaseException:
        os.write(told, traceback.format_exc()[-2000:].encode())
    finally:
        os._exit(code)


def said(there: int) -> str:
    with os.fdopen(there, "rb") as file:
        return file.read().decode()


def run(work: Callable[[], None], prepare: Callable[[int], None] = lambda told: None) -> tuple[int, str]:
    """Run something in a child to its end; return its exit code, negative for a signal, and what it told."""
    child, there = in_child(work, prepare)
    told = said(there)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Trials:
    """Conversions of one source that are stopped at each effect."""

    def __init__(self, name: str, folder: Path, step: int) -> None:
        self.make, self.convert = SOURCES[name]
        self.source, self.dest, self.folder = folder / "source", folder / "dest", folder
        self.expected = self.undisturbed()
        self.points: list[str] = []
        self.step = step
        self.faults: list[dict[str, Any]] = []

    def undisturbed(self) -> dict[str, str]:
        if not self.source.exists():
            self.make(self.source)
        code, text = run(lambda: self.convert(self.source, self.folder / "undisturbed"))
        assert code == DONE, text
        found = digests(self.folder / "undisturbed")
        shutil.rmtree(self.folder / "undisturbed")
        return found

    def each_point(self, ways: Sequence[str] = HOW) -> Iterator[tuple[str, int]]:
        """Yield each way to stop and the number of an effect, until a conversion has no more."""
        for how in ways:
            number, before = 0, len(self.points)
            while True:
                shutil.rmtree(self.dest, ignore_errors=True)
                yield how, number
                if len(self.points) == before:
                    break
                number, before = number + self.step, len(self.points)

    def fault(self, point: str, text: str) -> None:
        self.faults.append({"point": point, "fault": text, "there": digests(self.dest), "expected": self.expected})

    def check(self, point: str, code: int, text: str) -> None:
        """Record a fault unless a conversion ended well with the expected data set."""
        if code != DONE:
            self.fault(point, f"exit code {code}: {text}")
        elif digests(self.dest) != self.expected:
            self.fault(point, "other files")

    def is_complete(self) -> bool:
        ends = ("dataset.json", "tokens.json")
        return any((self.dest / end).exists() for end in ends) and not (self.dest / ".converting.json").exists()

    def kill(self) -> None:
        for how, number in self.each_point():
            code, point = self.stopped(how, number)
            if code != -signal.SIGKILL:
                self.check("nothing", code, point)
                continue
            self.points.append(point)
            if self.is_complete():
                self.check(point, DONE, "")
            else:
                self.check(point, *run(lambda: self.convert(self.source, self.dest)))

    def stopped(self, how: str, number: int) -> tuple[int, str]:
        return run(
            lambda: self.convert(self.source, self.dest),
            lambda told: stop_at(self.dest, number, how, told, signal.SIGKILL),
        )

    def change(self) -> None:
        path = sorted(one for one in self.source.rglob("*") if one.is_file())[-1]
        before, time = path.read_bytes(), path.stat()
        after = picture(99) if path.suffix == ".png" else before.replace(b"2", b"3")
        path.write_bytes(after)
        changed = self.undisturbed()
        for how, number in self.each_point():
            path.write_bytes(before)
            os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns))
            code, point = self.stopped(how, number)
            if code != -signal.SIGKILL:
                continue
            self.points.append(point)
            if self.is_complete():
                continue
            path.write_bytes(after)
            code, text = run(lambda: self.convert(self.source, self.dest))
            if code != REFUSED and (code != DONE or digests(self.dest) != changed):
                self.fault(point, f"exit code {code}: {text}")

    def two(self) -> None:
        resuming.WAIT_S = 0.0
        for how, number in self.each_point(HOW[:2]):  # half of a file would be a damage by the test
            for second_how, second in self.each_second():
                shutil.rmtree(self.dest, ignore_errors=True)
                first, there = in_child(
                    lambda: self.convert(self.source, self.dest),
                    lambda told, how=how, number=number: stop_at(self.dest, number, how, told, signal.SIGSTOP),
                )
                status = os.waitpid(first, os.WUNTRACED)[1]
                if not os.WIFSTOPPED(status):
                    said(there)
                    break
                code, text = run(
                    lambda: self.convert(self.source, self.dest),
                    lambda told, how=second_how, number=second: stop_at(self.dest, number, how, told, signal.SIGKILL),
                )
                os.kill(first, signal.SIGCONT)
                point = said(there)
                status = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
                if second_how == HOW[0] and second == 0:
                    self.points.append(point)
                self.second_ended = code != -signal.SIGKILL
                if code == FAILED:
                    self.fault(f"{point}; second", text)
                if not self.is_complete():
                    status, _ = run(lambda: self.convert(self.source, self.dest))
                self.check(f"{point}; second {code} {text}", status if status != REFUSED else DONE, point)

    def each_second(self) -> Iterator[tuple[str, int]]:
        """Yield the points at which the second conversion is killed; last those at which it is not."""
        for how in HOW[:2]:
            self.second_ended, number = False, 0
            while not self.second_ended:
                yield how, number
                number += 1


if __name__ == "__main__":
    os.fsync = lambda file: None  # a kill loses nothing that was written; only a power failure does
    text._TOGETHER_BYTES = 4000
    trials = Trials(sys.argv[1], Path(sys.argv[3]), int([*sys.argv, 1][4]))
    getattr(trials, sys.argv[2])()
    print(json.dumps({"points": len(trials.points), "faults": trials.faults}, indent=1))
