"""How does a check run a program under watch, and read what was recorded? With the standard library alone.

The findings need Paceline's own dependencies (numpy, msgspec). Where they are missing the record itself goes into the
answer, packed, and is judged elsewhere (``gpu_proof.py --judge``).
"""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.inprocess.settings import applied
from paceline.inprocess.settings.confirmation import FOLDER as HELD
from paceline.monitor.gauges.sampler import GaugeSampler
from paceline.monitor.supervision import watched_environment
from paceline.record import layout

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "gpu_programs"
_MOST_PACKED = 400_000  # bytes of a record in the JSON


@dataclass
class Watched:
    """A program that was run: what it printed last, and its record."""

    code: int
    told: dict[str, Any]
    errors: str
    folder: Path | None
    rows: list[dict[str, float]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    notes: list[dict[str, Any]] = field(default_factory=list)
    gauges: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # settings of a recipe that took hold: what that means
    refused: dict[str, str] = field(default_factory=dict)  # and those that did not: why

    @property
    def timed(self) -> list[dict[str, float]]:
        """The steps that the device timed."""
        return [row for row in self.rows if int(row["flags"]) & layout.FLAG_DEVICE_TIMED]


@contextmanager
def watched(
    program: str,
    *arguments: str,
    seconds: float = 80,
    watch: bool = True,
    recipe: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Watched]:
    """Run a program of `gpu_programs`, watched unless said, under a recipe; its record is there inside the ``with``."""
    with tempfile.TemporaryDirectory(prefix="gpu-proof-run-") as place:
        folder = Path(place) / "20260101-000000-proof"
        for part in (layout.RANKS_DIR, layout.WORKERS_DIR, layout.GAUGES_DIR):
            (folder / part).mkdir(parents=True)
        environment = dict(watched_environment(folder, os.environ)) if watch else dict(os.environ)
        environment |= applied(recipe) if recipe is not None else {}
        yield _run([sys.executable, str(PROGRAMS / program), *arguments], folder, seconds, environment)


def _run(command: list[str], folder: Path, seconds: float, environment: dict[str, str]) -> Watched:
    watch = "PACELINE_WATCH_DIR" in environment
    begun_ns, begun = time.monotonic_ns(), time.time()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=errors)
        sampler = GaugeSampler(folder, roots=(process.pid,)) if watch else None
        if sampler is not None:
            sampler.start()
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if sampler is not None:
            sampler.stop()
        out.seek(0)
        errors.seek(0)
        lines, said = out.read().strip().splitlines(), errors.read()
    _write_launch(folder, command, code, begun_ns, begun)
    told = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    found = Watched(code=code, told=told, errors=said[-2000:], folder=folder)
    return _with_record(found, folder) if watch else found


def _write_launch(folder: Path, command: list[str], code: int, begun_ns: int, begun: float) -> None:
    """Write what ``paceline run`` writes around a program, so that the record can be read like any other."""
    host = os.uname().nodename or "localhost"
    launch = {"schema": layout.SCHEMA_VERSION, "host": host, "pid": 1, "argv": ["gpu_proof"], "command": command}
    launch |= {"started_unix_s": begun, "started_ns": begun_ns}
    (folder / f"launch-{host}-1.json").write_text(json.dumps(launch))
    wall_s = (time.monotonic_ns() - begun_ns) / 1e9
    (folder / f"end-{host}-1.json").write_text(json.dumps({"exit_code": code, "wall_s": wall_s}))


def _with_record(found: Watched, folder: Path) -> Watched:
    for rank in sorted((folder / layout.RANKS_DIR).glob("*")):
        found.meta = json.loads((rank / layout.META_FILE).read_text())
        found.rows = _rows(rank / layout.STEPS_FILE)
        found.notes = _lines(rank / layout.NOTES_FILE)
        summary = rank / layout.SUMMARY_FILE
        found.summary = json.loads(summary.read_text()) if summary.exists() else {}
    for file in (folder / layout.GAUGES_DIR).glob("*.jsonl"):
        found.gauges = _lines(file)
    entries = [entry for file in (folder / HELD).glob("*.jsonl") for entry in _lines(file)]
    found.held = {entry["key"]: entry["what"] for entry in entries if entry["held"]}
    found.refused = {entry["key"]: entry["what"] for entry in entries if not entry["held"]}
    return found


def _rows(path: Path) -> list[dict[str, float]]:
    data = path.read_bytes() if path.exists() else b""
    whole = len(data) - len(data) % layout.STEP.size
    return [
        dict(zip(layout.STEP_FIELDS, row))
        for row in struct.iter_unpack(layout.STEP.format, data[:whole])
        if not row[1] & layout.FLAG_TAIL
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []


def packed(folder: Path) -> str | None:
    """Return a record as text, without the path of the checkout, or None when it is too large for the JSON."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            if file.suffix in (".json", ".jsonl"):
                content = content.replace(f"{HERE.parent}/".encode(), b"")
            entry = tarfile.TarInfo(str(Path(folder.name, file.relative_to(folder))))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    data = buffer.getvalue()
    return base64.b64encode(data).decode() if len(data) <= _MOST_PACKED else None


def figures_of(found: Watched) -> dict[str, Any]:
    """Return what a record says in figures, whether or not it can be judged here."""
    walls = sorted(row["wall_s"] for row in found.rows[len(found.rows) // 4 :])
    timed = found.timed[len(found.timed) // 4 :]
    total = sum(row["wall_s"] for row in timed) or 1.0
    return {
        "exit_code": found.code,
        "steps": len(found.rows),
        "steps_timed_by_device": len(found.timed),
        "step_median_s": walls[len(walls) // 2] if walls else None,
        "device_shares": {slot: sum(row[f"{slot}_s"] for row in timed) / total for slot in layout.SLOTS},
        "losses_seen": sum(bool(int(row["flags"]) & layout.FLAG_LOSS) for row in found.rows),
        "device": found.summary.get("device"),
        "syncs": found.summary.get("syncs"),
        "meta": {k: v for k, v in found.meta.items() if k not in ("argv", "host")},
        "window": next((_short(note) for note in found.notes if note["kind"] == "window"), None),
        "faults": [note.get("reason") for note in found.notes if note["kind"] == "fault"],
        "told": found.told,
    }


def _short(window: dict[str, Any]) -> dict[str, Any]:
    return {**window, "operators": window.get("operators", [])[:12]}


def finding(program: str, code: str, *arguments: str, seconds: float = 80, steps: int = 20) -> dict[str, Any]:
    """Run a program and say whether this finding is made of it; `steps`: fewer have failed."""
    with watched(program, *arguments, seconds=seconds) as found:
        answer: dict[str, Any] = {"figures": figures_of(found), "expected": code}
        answer["failed"] = basics(found, steps)
        if found.folder is not None:
            answer["record"] = packed(found.folder)
            answer.update(judge_record(answer, found.folder))
    return answer


def basics(found: Watched, steps: int) -> list[str]:
    """Return what is wrong with any watched run on a GPU."""
    failed = []
    if found.code != 0:
        failed.append(f"the program ended with {found.code}: {found.errors.strip().splitlines()[-1:]}")
    if "paceline:" in found.errors:
        failed.append(f"it was warned: {found.errors.strip()[-300:]}")
    if len(found.rows) < steps:
        failed.append(f"{len(found.rows)} steps were recorded, not {steps}")
    if found.meta.get("device") != "cuda":
        failed.append(f"the device is recorded as {found.meta.get('device')}")
    off = (found.summary.get("device") or {}).get("off")
    if off:
        failed.append(f"events are off: {off}")
    return failed


def judge_record(answer: dict[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the answer's verdict, findings, `failed` and `not_done`, from a record on disk or packed in it."""
    other = [text for text in answer["failed"] if not text.startswith("finding")]
    try:
        diagnosis = _diagnose(answer, folder)
    except ImportError as error:
        return {"failed": other, "not_done": [f"the finding was not judged here: {error}"]}
    if diagnosis is None:
        return {"failed": other, "not_done": ["the record is too large to be judged elsewhere"]}
    codes = [finding.code for finding in diagnosis.findings]
    expected = answer["expected"]
    if expected not in codes:
        other.append(f"finding {expected} was not made; these were: {', '.join(codes) or 'none'}")
    told = [
        {"code": f.code, "severity": f.severity, "time_share": f.time_share, "summary": f.summary}
        | {"gain": [f.gain.low, f.gain.high] if f.gain else None, "evidence": [e.text for e in f.evidence]}
        for f in diagnosis.findings
    ]
    verdict = {"verdict": diagnosis.verdict, "mfu": diagnosis.mfu, "findings": told, "shares": dict(diagnosis.shares)}
    return {"failed": other, "not_done": [], **verdict, "unavailable": dict(diagnosis.unavailable)}


def _diagnose(answer: dict[str, Any], folder: Path | None) -> Any:
    from paceline.explain.diagnose import diagnose
    from paceline.record.read import read_run

    if folder is not None:
        return diagnose(read_run(folder))
    if not answer.get("record"):
        return None
    guarded = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11 has it since 3.11.4
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(answer["record"]))) as archive:
            archive.extractall(place, **guarded)
        return diagnose(read_run(next(Path(place).iterdir())))
