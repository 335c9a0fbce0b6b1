"""Does a conversion that is killed at random moments end in the same bytes?

    python benchmarks/crashes.py [--kills 200] [--seed 0] [--save]

Each trial converts a small source (pictures, Parquet, text) with `paceline data convert`, kills it up to three times at
random moments, and runs the same command until it ends. The kill is SIGKILL or SIGTERM, sent to the command alone or to
its workers too; the next command starts at once, while workers may still be alive. Three kinds of trials:

    one       nothing else happens
    two       a second command converts into the same folder at the same time
    changed   after the last kill, one file of the source gets another content of the same size

A trial is sound if the folder holds, byte for byte, what an undisturbed conversion of the same source writes, with no
other file, and `paceline data verify` finds it whole. If the source has changed, a refusal to resume (exit code 2) is
sound too. The script ends with exit code 1 if a trial is not sound.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from _machine import about
from PIL import Image

RESULTS = Path(__file__).parent / "results"
SCHEMA = "paceline.benchmark.crashes/1"
KINDS = {"one": 0.5, "two": 0.25, "changed": 0.25}  # share of the trials
PICTURES, ROWS, DOCUMENTS = 300, 1000, 60
EARLY = 0.25  # share of the kills that come after a random time, before or after the first shard
LATER_S = 0.06  # the others come up to so long after a random number of shards is there
COMPLETE = ("dataset.json", "tokens.json")
REFUSED = 2  # exit code
FILES_OF_A_SHARD = {"pictures": 2, "parquet": 2, "text": 1}


def jpeg(seed: int) -> bytes:
    chance = np.random.default_rng(seed)
    small = Image.fromarray(chance.integers(0, 255, (6, 6, 3), np.uint8))
    file = io.BytesIO()
    small.resize((160, 128)).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_pictures(folder: Path) -> list[str]:
    for number in range(PICTURES):
        path = folder / f"class{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    return ["--shard-mb", "0.1"]


def make_parquet(folder: Path) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for part in range(3):
        chance = np.random.default_rng(part)
        columns = {"label": list(range(ROWS)), "data": [chance.bytes(300) for _ in range(ROWS)]}
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{part}.parquet", row_group_size=100)
    return ["--shard-mb", "0.2"]


def make_text(folder: Path) -> list[str]:
    folder.mkdir()
    for number in range(DOCUMENTS):
        chance = random.Random(number)
        text = "".join(chance.choice("abcdefgh \n") for _ in range(400_000))
        (folder / f"{number:02d}.txt").write_text(text, encoding="ascii")
    return ["--tokenizer", "bytes", "--shard-mb", "1"]


SOURCES = {"pictures": make_pictures, "parquet": make_parquet, "text": make_text}


def change(folder: Path, chance: random.Random) -> None:
    """Give one file another content of the same size."""
    path = chance.choice(sorted(one for one in folder.rglob("*") if one.is_file()))
    data = bytearray(path.read_bytes())
    if path.suffix == ".jpg":
        data[-40:-2] = bytes(one ^ 0x15 if one != 0xFF else one for one in data[-40:-2])
    elif path.suffix == ".txt":
        data[len(data) // 2] = data[len(data) // 2] ^ 1
    else:
        data = bytearray(_other_parquet(path, len(data)))
    path.write_bytes(data)


def _other_parquet(path: Path, size: int) -> bytes:
    """Return a table with one other value, written with the same options, so that it has the same size."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    values = table.column("data").to_pylist()
    values[len(values) // 2] = values[len(values) // 2][::-1]
    file = io.BytesIO()
    pyarrow.parquet.write_table(table.set_column(1, "data", pyarrow.array(values)), file, row_group_size=100)
    assert len(file.getvalue()) == size
    return file.getvalue()


def started(source: Path, dest: Path, options: list[str]) -> subprocess.Popen[str]:
    own = ["--processes", "2"] if "--tokenizer" not in options else []
    command = [sys.executable, "-m", "paceline", "data", "convert", str(source), str(dest), *options, *own]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said = process.communicate(timeout=300)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return -1, "it did not end in 300 s"
    return process.returncode, said


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def shards_in(dest: Path) -> int:
    """Return how many shards of a conversion are finished."""
    try:
        return sum(name.endswith((".tar", ".npy")) and not name.startswith(".") for name in os.listdir(dest))
    except FileNotFoundError:
        return 0


class Trials:
    """Conversions that are killed, and what came of them."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work, self.chance = work, random.Random(seed)
        self.options: dict[str, list[str]] = {}
        self.whole: dict[str, dict[str, str]] = {}
        self.takes_s: dict[str, float] = {}
        self.kills: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        for name, make in SOURCES.items():
            self.options[name] = make(work / name)
            begun = time.monotonic()
            self.whole[name] = self.undisturbed(work / name, name)
            self.takes_s[name] = time.monotonic() - begun

    def undisturbed(self, source: Path, name: str) -> dict[str, str]:
        dest = self.work / "undisturbed"
        code, said = ended(started(source, dest, self.options[name]))
        assert code == 0, said
        found = digests(dest)
        shutil.rmtree(dest)
        return found

    def trial(self, number: int) -> None:
        name = self.chance.choice(sorted(SOURCES))
        kind = self.chance.choices(sorted(KINDS), [KINDS[one] for one in sorted(KINDS)])[0]
        source, dest = self.work / name, self.work / f"out{number}"
        expected = self.whole[name]
        if kind == "changed":
            source = shutil.copytree(source, self.work / f"source{number}" / name)
        for _ in range(self.chance.randint(1, 3)):
            if not self.complete(dest):
                self.kill(source, dest, name, two=kind == "two")
        if kind == "changed" and not self.complete(dest):
            change(source, self.chance)
            expected = self.undisturbed(source, name)
        outcome = self.finish(source, dest, name)
        if outcome != "refused":
            fault = self.fault_of(dest, expected)
            if fault:
                self.faults.append(f"trial {number}, {name}, {kind}, {outcome}: {fault}")
        elif kind != "changed":
            self.faults.append(f"trial {number}, {name}, {kind}: refused")
        self.outcomes[f"{kind}: {outcome}"] += 1
        shutil.rmtree(dest, ignore_errors=True)
        if kind == "changed":
            shutil.rmtree(source.parent)

    def kill(self, source: Path, dest: Path, name: str, *, two: bool) -> None:
        """Start one or two commands, and kill one of them after a random time."""
        running = [started(source, dest, self.options[name]) for _ in range(1 + two)]
        self.wait(running[0], dest, name)
        victim, sent = running[0], self.chance.choice([signal.SIGKILL, signal.SIGTERM])
        whole = self.chance.random() < 0.5
        if victim.poll() is None:
            self.kills[f"{sent.name} to {'all' if whole else 'the command'}"] += 1
            (os.killpg if whole else os.kill)(victim.pid, sent)
        if two and self.chance.random() < 0.5:
            ended(running[1])
        for process in running:
            if process is victim and sent == signal.SIGTERM:
                ended(process)
            elif process.poll() is None:
                process.kill()
            process.wait()
            process.stderr.close()

    def wait(self, process: subprocess.Popen[str], dest: Path, name: str) -> None:
        """Let a command work for a random time."""
        if self.chance.random() < EARLY:
            time.sleep(self.chance.uniform(0, 0.5 * self.takes_s[name]))
            return
        there = shards_in(dest)
        wanted = self.chance.randint(there, max(there, len(self.whole[name]) // FILES_OF_A_SHARD[name] - 1))
        while process.poll() is None and shards_in(dest) < wanted:
            time.sleep(0.002)
        time.sleep(self.chance.uniform(0, LATER_S))

    def complete(self, dest: Path) -> bool:
        return any((dest / one).exists() for one in COMPLETE) and not (dest / ".converting.json").exists()

    def finish(self, source: Path, dest: Path, name: str) -> str:
        """Run the command until it ends by itself."""
        if self.complete(dest):
            return "complete before"
        begun = "resumed" if shards_in(dest) else "made anew"
        code, said = ended(started(source, dest, self.options[name]))
        for _ in range(20):
            if code != REFUSED or "another process" not in said:
                break
            time.sleep(0.2)  # a worker of the command that was killed still holds the lock
            code, said = ended(started(source, dest, self.options[name]))
        if self.complete(dest):
            return f"complete, {begun}"
        return "refused" if code == REFUSED else f"exit code {code}: {said[-300:]}"

    def fault_of(self, dest: Path, expected: dict[str, str]) -> str | None:
        found = digests(dest)
        if found != expected:
            other = sorted(one for one in {*found, *expected} if found.get(one) != expected.get(one))
            return f"other bytes: {', '.join(other[:6])}"
        command = [sys.executable, "-m", "paceline", "data", "verify", str(dest)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"verify: {done.stderr[-300:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results/")
    asked = parser.parse_args()
    begun, machine = time.monotonic(), about(("numpy", "pillow", "pyarrow"))
    with tempfile.TemporaryDirectory(prefix="paceline-crashes-") as work:
        trials, number = Trials(Path(work), asked.seed), 0
        while trials.kills.total() < asked.kills:
            trials.trial(number)
            number += 1
            print(f"{trials.kills.total()} kills, {number} trials, {len(trials.faults)} faults", file=sys.stderr)
    found = {
        "schema": SCHEMA,
        **machine,
        "seed": asked.seed,
        "kills": dict(trials.kills),
        "trials": number,
        "outcomes": dict(sorted(trials.outcomes.items())),
        "faults": trials.faults,
        "wall_s": round(time.monotonic() - begun, 1),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if asked.save:
        (RESULTS / f"crashes-{machine['date']}.json").write_text(text + "\n", encoding="utf-8")
    return 1 if trials.faults else 0


if __name__ == "__main__":
    sys.exit(main())
