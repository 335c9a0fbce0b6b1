"""Does a conversion that is killed at random moments end in the same bytes?

    python benchmarks/crashes.py [--kills 200] [--seed 0] [--seconds 150] [--out FILE] [--keep FOLDER]
    python benchmarks/crashes.py --trial 17 [--seed 0]

Each trial converts a small source (pictures, Parquet, text) with `paceline data convert`, kills it up to three times at
random moments, and runs the same command until it ends. The kill is SIGKILL or SIGTERM, sent to the command alone or to
its workers too; the next command starts at once, while workers may still be alive. Three kinds of trials:

    one       nothing else happens
    two       a second command converts into the same folder at the same time
    changed   after the last kill, one file of the source gets another content of the same size

A trial is sound if the folder holds, byte for byte, what an undisturbed conversion of the same source writes, with no
other file, and `paceline data verify` finds it whole. If the source has changed, a refusal to resume (exit code 2) is
sound too. A fault is printed at once with all that happened in the trial: the commands, the kills with their time, the
files after each, what was found and what was expected; `--keep` keeps its folders. Trial N of a seed draws the same
random numbers each time. With `--out` the results are in a file after each trial, and a script that is started again
continues there. The script ends with exit code 1 if a trial is not sound. Random moments miss short windows:
`tests/data/kill_points.py` kills a conversion before and after each of its effects on files.
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
from typing import Any

import numpy as np
from _machine import about
from PIL import Image

SCHEMA = "paceline.benchmark.crashes/2"
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


class Trial:
    """One conversion that is killed, the log of what happened to it, and the result."""

    def __init__(self, sources: Sources, seed: int, number: int) -> None:
        self.sources, self.number = sources, number
        self.chance = random.Random(f"{seed} {number}")
        self.name = self.chance.choice(sorted(SOURCES))
        self.kind = self.chance.choices(sorted(KINDS), [KINDS[one] for one in sorted(KINDS)])[0]
        self.source, self.dest = sources.work / self.name, sources.work / f"out{number}"
        self.begun = time.monotonic()
        self.kills: list[str] = []
        self.log: list[str] = []
        self.outcome = ""

    def note(self, text: str) -> None:
        files = {path.name: path.stat().st_size for path in sorted(self.dest.glob("*")) if path.exists()}
        self.log.append(f"{time.monotonic() - self.begun:.3f} s: {text}; files: {files}")

    def run(self) -> dict[str, Any] | None:
        """Return the fault that was found, or None."""
        expected = self.sources.complete[self.name]
        if self.kind == "changed":
            self.source = shutil.copytree(self.source, self.sources.work / f"source{self.number}" / self.name)
        for _ in range(self.chance.randint(1, 3)):
            if not self.complete():
                self.kill()
        if self.kind == "changed" and not self.complete():
            change(self.source, self.chance)
            expected = self.sources.undisturbed(self.source, self.name)
            self.note("the source was changed")
        self.outcome = self.finish()
        self.note(self.outcome)
        found = digests(self.dest)
        if self.outcome == "refused":
            fault = None if self.kind == "changed" else "refused"
        else:
            fault = self.fault_of(found, expected)
        if fault is None:
            return None
        return {
            "trial": self.number,
            "source": self.name,
            "kind": self.kind,
            "fault": fault,
            "log": self.log,
            "other": {one: [found.get(one), expected.get(one)] for one in differing(found, expected)},
        }

    def kill(self) -> None:
        """Start one or two commands, and kill one of them after a random time."""
        options = self.sources.options[self.name]
        running = [started(self.source, self.dest, options) for _ in range(1 + (self.kind == "two"))]
        self.note(f"started {[one.pid for one in running]}")
        self.wait(running[0])
        victim, sent = running[0], self.chance.choice([signal.SIGKILL, signal.SIGTERM])
        to_all = self.chance.random() < 0.5
        if victim.poll() is None:
            self.kills.append(f"{sent.name} to {'all' if to_all else 'the command'}")
            (os.killpg if to_all else os.kill)(victim.pid, sent)
            self.note(f"{self.kills[-1]}, {victim.pid}")
        if len(running) > 1 and self.chance.random() < 0.5:
            self.note(f"the second ended: {ended(running[1])}")
        for process in running:
            if process is victim and sent == signal.SIGTERM:
                self.note(f"ended: {ended(process)}")
            elif process.poll() is None:
                process.kill()
                self.note(f"SIGKILL to {process.pid}")
            process.wait()
            process.stderr.close()

    def wait(self, process: subprocess.Popen[str]) -> None:
        """Let a command work for a random time."""
        if self.chance.random() < EARLY:
            time.sleep(self.chance.uniform(0, 0.5 * self.sources.takes_s[self.name]))
            return
        there = shards_in(self.dest)
        most = len(self.sources.complete[self.name]) // FILES_OF_A_SHARD[self.name]
        wanted = self.chance.randint(there, max(there, most))
        while process.poll() is None and shards_in(self.dest) < wanted:
            time.sleep(0.002)
        time.sleep(self.chance.uniform(0, LATER_S))

    def complete(self) -> bool:
        return any((self.dest / one).exists() for one in COMPLETE) and not (self.dest / ".converting.json").exists()

    def finish(self) -> str:
        """Run the command until it ends by itself."""
        if self.complete():
            return "complete before"
        begun = "resumed" if shards_in(self.dest) else "made anew"
        code, said = ended(started(self.source, self.dest, self.sources.options[self.name]))
        if code == REFUSED:
            self.note(said)
        if code == 0 and self.complete():
            return f"complete, {begun}"
        return "refused" if code == REFUSED else f"exit code {code}: {said[-2000:]}"

    def fault_of(self, found: dict[str, str], expected: dict[str, str]) -> str | None:
        if not self.complete():
            return "not complete"
        if found != expected:
            return f"other bytes: {', '.join(differing(found, expected))}"
        command = [sys.executable, "-m", "paceline", "data", "verify", str(self.dest)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"verify: {done.stderr[-2000:]}"

    def remove(self, keep: Path | None) -> None:
        """Remove the folders of the trial, or move them to another folder."""
        for folder in (self.dest, self.sources.work / f"source{self.number}"):
            if folder.exists() and keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                shutil.move(folder, keep / folder.name)
            shutil.rmtree(folder, ignore_errors=True)


def differing(found: dict[str, str], expected: dict[str, str]) -> list[str]:
    return sorted(one for one in {*found, *expected} if found.get(one) != expected.get(one))


class Sources:
    """Small data sets, and what an undisturbed conversion makes of them."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.options: dict[str, list[str]] = {}
        self.complete: dict[str, dict[str, str]] = {}
        self.takes_s: dict[str, float] = {}
        for name, make in SOURCES.items():
            self.options[name] = make(work / name)
            begun = time.monotonic()
            self.complete[name] = self.undisturbed(work / name, name)
            self.takes_s[name] = time.monotonic() - begun

    def undisturbed(self, source: Path, name: str) -> dict[str, str]:
        dest = self.work / "undisturbed"
        code, said = ended(started(source, dest, self.options[name]))
        assert code == 0, said
        found = digests(dest)
        shutil.rmtree(dest)
        return found


def earlier(out: Path | None, seed: int) -> dict[str, Any]:
    """Return the results to continue from."""
    if out is not None and out.exists():
        found = json.loads(out.read_text(encoding="utf-8"))
        assert found["seed"] == seed, f"{out} has results of seed {found['seed']}"
        return found
    machine = about(("paceline", "numpy", "pillow", "pyarrow"))
    none = {"kills": {}, "trials": 0, "outcomes": {}, "faults": [], "wall_s": 0}
    return {"schema": SCHEMA, **machine, "seed": seed, **none}


def add(results: dict[str, Any], trial: Trial, fault: dict[str, Any] | None) -> None:
    """Add a trial to the results."""
    results["kills"] = dict(sorted((Counter(results["kills"]) + Counter(trial.kills)).items()))
    outcome = f"{trial.kind}: {trial.outcome.partition(': ')[0]}"
    results["outcomes"] = dict(sorted((Counter(results["outcomes"]) + Counter([outcome])).items()))
    results["trials"] += 1
    results["faults"] += [fault] if fault else []
    results["wall_s"] = round(results["wall_s"] + time.monotonic() - trial.begun, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time; --out continues")
    parser.add_argument("--out", type=Path, help="file for the results, such as benchmarks/results/crashes-DATE.json")
    parser.add_argument("--keep", type=Path, help="keep the folders of trials with a fault here")
    parser.add_argument("--trial", type=int, help="run only this trial")
    asked = parser.parse_args()
    begun, results = time.monotonic(), earlier(asked.out, asked.seed)
    with tempfile.TemporaryDirectory(prefix="paceline-crashes-") as work:
        sources = Sources(Path(work))
        while sum(results["kills"].values()) < asked.kills and time.monotonic() - begun < asked.seconds:
            trial = Trial(sources, asked.seed, results["trials"] if asked.trial is None else asked.trial)
            fault = trial.run()
            if fault:
                print(json.dumps(fault, indent=1), file=sys.stderr, flush=True)
            trial.remove(asked.keep if fault else None)
            add(results, trial, fault)
            if asked.out:
                asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            kills = sum(results["kills"].values())
            print(f"{kills} kills, {results['trials']} trials, {len(results['faults'])} faults", file=sys.stderr)
            if asked.trial is not None:
                print("\n".join(trial.log), file=sys.stderr)
                break
    print(json.dumps(results, indent=1))
    return 1 if results["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
