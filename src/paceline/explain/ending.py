"""How did the run end, in words? From exit codes, signals and what the ranks noted."""

from __future__ import annotations

from paceline.record.run import Launch, Rank, Run


def ended(run: Run) -> str:
    """Return one phrase: finished, still running, killed, failed with an exception and so on."""
    if not run.launches:
        return "its launch record is missing"
    if not run.finished:
        return _unfinished(run)
    worst = max(run.launches, key=lambda x: abs(x.exit_code or 0))
    failure = _exception(run)
    if worst.exit_code == 0:
        return "finished"
    if worst.signal is not None or (worst.exit_code or 0) > 128:
        return _signalled(worst) + (f"; {failure}" if failure else "")
    return f"exited with code {worst.exit_code}" + (f": {failure}" if failure else "")


def _signalled(launch: Launch) -> str:
    import signal

    name = launch.signal
    if name is None:
        try:
            name = signal.Signals((launch.exit_code or 0) - 128).name
        except ValueError:
            return f"exited with code {launch.exit_code}"
    if name == "SIGKILL" and launch.oom_kills:
        return "killed by the kernel: out of memory (SIGKILL)"
    words = {"SIGINT": "interrupted (SIGINT)", "SIGTERM": "ended by SIGTERM", "SIGKILL": "killed (SIGKILL)"}
    return words.get(name, f"ended by {name}")


def _unfinished(run: Run) -> str:
    """A launch without an end: it still runs, or paceline itself was killed."""
    if any(_alive(launch) for launch in run.launches if launch.exit_code is None):
        return "still running"
    return "cut off: paceline itself was killed, or the machine went down"


def _alive(launch: Launch) -> bool:
    import platform
    from pathlib import Path

    if launch.host != (platform.node() or "localhost"):
        return True  # on another host: not to be known from here
    try:
        return b"paceline" in Path(f"/proc/{launch.pid}/cmdline").read_bytes()
    except OSError:
        return False


def _exception(run: Run) -> str:
    for rank in run.ranks:
        text = _end_of(rank)
        if text:
            return text + (f" on rank {rank.rank}" if len(run.ranks) > 1 else "")
    return ""


def _end_of(rank: Rank) -> str:
    for note in rank.noted("end"):
        if note.get("exception"):
            message = str(note.get("message") or "").splitlines()
            first = f": {message[0][:160]}" if message else ""
            where = f" at {note['where']}" if note.get("where") else ""
            return f"{note['exception']}{first}{where}"
    return ""


def unended_ranks(run: Run) -> list[int]:
    """Return ranks that wrote no last word though the run is over: killed, or left through ``os._exit``."""
    return [r.rank for r in run.ranks if not r.noted("end")] if run.finished else []
