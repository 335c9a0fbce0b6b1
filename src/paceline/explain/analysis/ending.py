"""The end of a run as text, from exit codes, signals and the end notes of the ranks."""

from __future__ import annotations

from paceline.record.run import JsonObject, Launch, Rank, Run

RUNNING = "still running"
FINISHED = "finished"


def ended(run: Run) -> str:
    """Return how the run ended as a phrase: finished, still running, killed, failed with an exception and so on."""
    if not run.launches:
        return "its launch record is missing"
    if not run.finished:
        return _unfinished(run)
    worst = max(run.launches, key=lambda x: abs(x.exit_code or 0))
    if worst.exit_code == 0:
        return FINISHED if worst.asked_to_end is None else f"stopped by {worst.asked_to_end}, with exit code 0"
    if worst.signal is not None or (worst.exit_code or 0) > 128:
        return "; ".join(filter(None, [_signalled(worst), _exception(run), _memory(worst)]))
    why = "; ".join(filter(None, [_exception(run) or _silence(run), _memory(worst)]))
    after = f" after {worst.asked_to_end}" if worst.asked_to_end is not None else ""
    return f"exited with code {worst.exit_code}{after}" + (f": {why}" if why else "")


def _silence(run: Run) -> str:
    """Return a phrase if no rank recorded how it ended, or an empty string if at least one rank did."""
    silent = unended_ranks(run)
    if not silent or len(silent) < len(run.ranks):
        return ""
    who = "the training process ended" if len(silent) == 1 else f"all {len(silent)} ranks ended"
    return f"{who} without a message (killed, or ended by os._exit)"


def _memory(launch: Launch) -> str:
    """Return a phrase if the kernel killed processes on this host because memory was full, or an empty string.

    The counter of the kernel does not tell which processes it killed.
    """
    if not launch.oom_kills:
        return ""
    killed = "a process" if launch.oom_kills == 1 else f"{launch.oom_kills} processes"
    likely = "likely out of memory: " if launch.signal == "SIGKILL" else ""
    return f"{likely}during the run, the operating system killed {killed} on this host because memory was full"


def _signalled(launch: Launch) -> str:
    import signal

    name = launch.signal
    if name is None:
        try:
            name = signal.Signals((launch.exit_code or 0) - 128).name
        except ValueError:
            return f"exited with code {launch.exit_code}"
    words = {"SIGINT": "interrupted (SIGINT)", "SIGTERM": "ended by SIGTERM", "SIGKILL": "killed (SIGKILL)"}
    return words.get(name, f"ended by {name}")


def _unfinished(run: Run) -> str:
    """Return the phrase for a launch without a recorded end: it still runs, or the reason why no end was recorded."""
    import os

    if any(_on_this_host(launch) and launch.pid == os.getpid() for launch in run.launches):
        return "ended; the exit code could not be recorded"
    if any(_alive(launch) for launch in run.launches if launch.exit_code is None):
        return RUNNING
    return "interrupted: Paceline itself was killed, or the machine stopped"


def _alive(launch: Launch) -> bool:
    from pathlib import Path

    if not _on_this_host(launch):
        return True  # a process on another host cannot be checked from here
    try:
        return b"paceline" in Path(f"/proc/{launch.pid}/cmdline").read_bytes()
    except OSError:
        return False


def _on_this_host(launch: Launch) -> bool:
    import platform

    return launch.host == (platform.node() or "localhost")


def _exception(run: Run) -> str:
    """Return the earliest exception with its place and rank. Exceptions of other ranks mostly follow from it."""
    ranks = [*_last_lives(run), *run.beside, *run.stepless]
    notes = [(rank, note) for rank in ranks for note in rank.noted("end") if note.get("exception")]
    found = [(_at(rank, note), rank.rank, note) for rank, note in notes]
    if not found:
        return ""
    _, number, note = min(found, key=lambda each: each[:2])
    message = str(note.get("message") or "").splitlines()
    first = f": {message[0][:160].rstrip(' .')}" if message else ""
    where = f" at {note['where']}" if note.get("where") else ""
    return f"{note['exception']}{where}" + (f" on rank {number}" if len(run.ranks) > 1 else "") + first


def _last_lives(run: Run) -> list[Rank]:
    """Return the latest process of each rank. After a restart of a job, the ends of earlier processes do not count."""
    last: dict[int, Rank] = {}
    for rank in sorted([*run.ranks, *run.earlier], key=lambda r: float(r.meta.get("started_unix_s") or 0.0)):
        last[rank.rank] = rank
    return list(last.values())


def _at(rank: Rank, note: JsonObject) -> int:
    """Return the time of a note in nanoseconds since 1970, which is comparable between hosts."""
    return int(note.get("time_ns") or 0) + int(rank.meta.get("epoch_offset_ns") or 0)


def unended_ranks(run: Run) -> list[int]:
    """Return the ranks of a finished run that recorded no end: they were killed or called ``os._exit``."""
    return [r.rank for r in _last_lives(run) if not r.noted("end") and not r.noted("fault")] if run.finished else []
