"""What does a picture cost on its way into a batch, beside other loaders? CPU time and rate, warm and cold.

    python benchmarks/loader.py [--peer NAME=PYTHON ...] [--workers 0 1 2] [--rounds N] [--count 12000]

Each peer is a program of its own in `loader_peers/`, with a Python of its own where packages do not get along. All
read the same pictures, with the same decoder in the same settings where they let us choose, and make the same batches
(64 x 224 x 224, cropped at random). In a round all peers are started, and go in turn, half a second at a time, the
others stopped: what the machine does meanwhile falls on all alike. Ratios are taken within a round; their median
counts.

Asked for are, at two threads or workers, at most 0.55 of LitData's CPU time, 0.8 of SPDL's, 0.5 of WebDataset's, 0.28
of folder + PIL's, 1.15 of decoding alone; and cold reads at least 6 times as fast as a folder's. What the disk gives at
most, read directly by as many at once, is measured beside that.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _photos
from _clocked import Clocked
from _machine import about, stolen_s
from _turns import in_turn

RESULTS = Path(__file__).parent / "results"
PEERS = Path(__file__).parent / "loader_peers"
SCHEMA = "paceline.benchmark.loader/1"
OURS = "paceline_shards"
ASKED = {"litdata_chunks": 0.55, "spdl_batches": 0.8, "webdataset_tar": 0.5, "folder_pil": 0.28}
ASKED_LIMIT, ASKED_COLD = 1.15, 6.0
LIMIT_S = 300.0
_SLICE_S = 0.5  # in which one peer goes and the others are stopped
_LINE = re.compile(r"samples (\d+) cpu (\S+)")
_COLD_BYTES = 64 << 20
_READERS = 4  # at once
_DIRECT_BYTES = 2 << 20


def main() -> int:
    options = parser().parse_args()
    pythons = dict(peer.split("=", 1) for peer in options.peer)
    names = [name for name in (path.stem for path in sorted(PEERS.glob("[a-z]*.py"))) if usable(name, pythons)]
    result: dict[str, Any] = {"schema": SCHEMA, **about(("torch", "simplejpeg", "opencv-python-headless", "paceline"))}
    options.folder.mkdir(parents=True, exist_ok=True)
    pictures = _photos.make(options.folder / "pictures", options.count)
    result["pictures"] = described(pictures)
    for name in names:
        prepare(name, pythons, pictures, options.folder)
    result["rounds"] = measured(names, pythons, options)
    result["limit"] = limit(options.folder / OURS)
    result["cold"] = cold(pictures, options.folder / OURS, options.rounds)
    result["summary"] = summary(result)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"loader-{result['date']}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join([*sentences(result), f"written: {file}"]))
    return 0 if all(one["reached"] for one in result["summary"] if one["reached"] is not None) else 1


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="the Python that has a peer")
    found.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--count", type=int, default=12_000, help="pictures")
    found.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "paceline-loader-benchmark")
    found.add_argument("--out", type=Path, default=RESULTS)
    return found


def python_of(name: str, pythons: dict[str, str]) -> str:
    return pythons.get(name, sys.executable)


def usable(name: str, pythons: dict[str, str]) -> bool:
    """Say whether a peer's packages are there; if not, print what is left out."""
    check = subprocess.run(command(name, pythons, "import"), check=False, capture_output=True, text=True)
    if check.returncode:
        why = check.stderr.strip().rpartition("\n")[2]
        print(f"left out: {name}, with {python_of(name, pythons)}: {why}", file=sys.stderr)
    return check.returncode == 0


def prepare(name: str, pythons: dict[str, str], pictures: Path, folder: Path) -> None:
    """Have a peer convert the pictures, once."""
    if not (folder / name).exists():
        subprocess.run(command(name, pythons, "prepare", pictures, folder / name), check=True, timeout=LIMIT_S)


def command(name: str, pythons: dict[str, str], *arguments: object) -> list[str]:
    return [python_of(name, pythons), str(PEERS / f"{name}.py"), *map(str, arguments)]


def measured(names: Sequence[str], pythons: dict[str, str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what each peer took in each round, with each number of workers; all of them run in turns."""
    found: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for workers in options.workers:
            order = random.Random(number).sample(list(names), len(names))
            commands = {name: command(name, pythons, "read", options.folder / name, workers) for name in order}
            stolen = stolen_s()
            with tempfile.TemporaryDirectory() as folder:
                clocked = in_turn(commands, Path(folder), LIMIT_S, line=_LINE, slice_s=_SLICE_S)
            found += [row(number, workers, name, one) for name, one in clocked.items()]
            told = ", ".join(f"{one['peer']} {one['cpu_ms']:.3f}" for one in found[-len(names) :])
            print(f"round {number + 1}, {workers} workers, ms CPU a sample: {told}; {stolen_s() - stolen:.1f} s stolen")
    return found


def row(number: int, workers: int, name: str, clocked: Clocked) -> dict[str, Any]:
    """Return what a peer took between the moment when all of it ran and the end of its samples."""
    samples = max(clocked.at_s)
    cpu_s = float(clocked.losses[samples]) - float(clocked.losses[0])
    return {
        "round": number,
        "workers": workers,
        "peer": name,
        "cpu_ms": 1e3 * cpu_s / samples,
        "samples_per_s": samples / (clocked.at_s[samples] - clocked.at_s[0]),
    }


def limit(shards: Path) -> dict[str, Any]:
    """Return our CPU time beside that of decoding alone, in one process, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench.json"
        rounds = ["--threads", "2", "--rounds", "20", "--samples", "2048"]
        command = [sys.executable, "-m", "paceline", "data", "bench", str(shards), *rounds, "--json", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
        found = json.loads(file.read_text())
    return {key: found[key] for key in ("cpu_ms_per_sample", "decode_limit_cpu_ms", "times_decode_limit", "intervals")}


def cold(pictures: Path, shards: Path, rounds: int) -> dict[str, Any]:
    """Return bytes a second from a disk whose pages are not in memory: of a folder's files, and of blocks of shards."""
    files = sorted(pictures.rglob("*.jpg"))
    random.Random(1).shuffle(files)
    each: dict[str, list[float]] = {"folder": [], "shards": [], "disk": []}
    for _ in range(rounds):
        each["folder"].append(_folder_rate(files))
        each["shards"].append(_shards_rate(shards))
        each["disk"].append(_disk_rate(shards))
    return {name: {"median": statistics.median(rates), "rounds": rates} for name, rates in each.items()}


def _folder_rate(files: Sequence[Path]) -> float:
    chosen, size = [], 0
    for path in files:
        chosen.append(path)
        size += path.stat().st_size
        if size >= _COLD_BYTES:
            break
    for path in chosen:
        forget(path)
    begun = time.perf_counter()
    read = sum(len(path.read_bytes()) for path in chosen)
    return read / (time.perf_counter() - begun)


def _shards_rate(shards: Path) -> float:
    """Read blocks as the loader does, several at a time."""
    from paceline.data.reading.blocks import BlockStore, Buffers
    from paceline.data.reading.sharded import ShardedDataset
    from paceline.data.reading.stages import StageClock

    for path in sorted(shards.glob("*.tar")):
        forget(path)
    dataset = ShardedDataset(shards)
    blocks = [number for number, row in enumerate(dataset.blocks) if row["end"] <= _COLD_BYTES]
    store = BlockStore(dataset, Buffers(), 256 << 20, StageClock(), lambda waited_s: None)
    store.allow(_READERS)
    begun = time.perf_counter()
    store.want(blocks)
    read = sum(len(store.get(number).data) for number in blocks)
    rate = read / (time.perf_counter() - begun)
    store.close()
    return rate


def _disk_rate(shards: Path) -> float:
    """Read as much directly, past the pages in memory, by as many at once: more the disk does not give."""
    path = max(shards.glob("*.tar"), key=lambda one: one.stat().st_size)
    places = range(0, min(_COLD_BYTES, path.stat().st_size - _DIRECT_BYTES), _DIRECT_BYTES)

    def read(reader: int) -> int:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, _DIRECT_BYTES) as aligned:
                return sum(os.preadv(file, [aligned], place) for place in places[reader::_READERS])
        finally:
            os.close(file)

    forget(path)
    begun = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        done = sum(pool.map(read, range(_READERS)))
    return done / (time.perf_counter() - begun)


def forget(path: Path) -> None:
    """Have the system let go of a file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def described(pictures: Path) -> dict[str, Any]:
    sizes = [path.stat().st_size for path in pictures.rglob("*.jpg")]
    return {
        "count": len(sizes),
        "mean_bytes": statistics.mean(sizes),
        "made": "parts of photographs with noise, _photos.py",
    }


def summary(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return our ratios with what was asked for; of peers without a figure asked, the ratio alone."""
    rows = result["rounds"]
    found: list[dict[str, Any]] = []
    for workers in sorted({row["workers"] for row in rows}):
        for peer in sorted({row["peer"] for row in rows} - {OURS}):
            ratios = paired(rows, peer, workers)
            asked = ASKED.get(peer) if workers == 2 else None
            found.append(ratio(f"CPU beside {peer}, {workers} workers", ratios, asked, above=False))
    found.append(_of_limit(result["limit"]))
    each = result["cold"]
    for what, asked in (("folder", ASKED_COLD), ("disk", None)):
        pairs = zip(each["shards"]["rounds"], each[what]["rounds"], strict=True)
        told = {"folder": "cold read beside a folder", "disk": "cold read beside all that the disk gives"}[what]
        found.append(ratio(told, [own / other for own, other in pairs], asked, above=True))
    return found


def _of_limit(told: dict[str, Any]) -> dict[str, Any]:
    around = told["intervals"]["times_decode_limit"]
    return {
        "what": "CPU beside decoding alone, 2 threads",
        "ratio": told["times_decode_limit"],
        "low": around["low"],
        "high": around["high"],
        "pairs": around["count"],
        "asked": ASKED_LIMIT,
        "reached": told["times_decode_limit"] <= ASKED_LIMIT,
    }


def paired(rows: Sequence[dict[str, Any]], peer: str, workers: int) -> list[float]:
    by = {(row["round"], row["peer"]): row["cpu_ms"] for row in rows if row["workers"] == workers}
    return [by[number, OURS] / by[number, peer] for number, name in by if name == peer]


def ratio(what: str, ratios: Sequence[float], asked: float | None, *, above: bool) -> dict[str, Any]:
    value = statistics.median(ratios)
    reached = None if asked is None else (value >= asked if above else value <= asked)
    return {
        "what": what,
        "ratio": value,
        "low": min(ratios),
        "high": max(ratios),
        "pairs": len(ratios),
        "asked": asked,
        "reached": reached,
    }


def sentences(result: dict[str, Any]) -> list[str]:
    return [
        f"{one['what']}: {one['ratio']:.2f} ({one['low']:.2f} to {one['high']:.2f}, {one['pairs']} pairs)"
        + (
            f", asked {one['asked']}: {'reached' if one['reached'] else 'NOT reached'}"
            if one["asked"] is not None
            else ""
        )
        for one in result["summary"]
    ]


if __name__ == "__main__":
    raise SystemExit(main())
