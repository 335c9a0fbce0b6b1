"""Find the processes of this host that are ranks of the run, by their folders ``ranks/<host>-<pid>``.

Not every rank is a descendant of the `paceline run` command: with srun, mpirun and ssh, daemons start the ranks. A
folder that is older than a minute when sampling starts belongs to an earlier attempt, and its process number may now
belong to another process.
"""

from __future__ import annotations

import os
from pathlib import Path

_FRESH_S = 60.0


class RankFolders:
    """The rank folders of one host. New folders are found as they appear."""

    def __init__(self, folder: Path, host: str, began_unix_s: float) -> None:
        self._folder = folder
        self._host = host
        self._oldest_unix_s = began_unix_s - _FRESH_S
        self._seen: set[str] = set()

    def new_pids(self) -> list[int]:
        """Return the process numbers of the folders that appeared since the last call."""
        try:
            new = {each.name: each for each in os.scandir(self._folder) if each.name not in self._seen}
            self._seen |= new.keys()
            return [pid for each in new.values() if (pid := self._pid(each)) is not None]
        except OSError:
            return []

    def _pid(self, entry: os.DirEntry[str]) -> int | None:
        host, _, pid = entry.name.rpartition("-")
        if host != self._host or not pid.isdigit() or entry.stat().st_mtime < self._oldest_unix_s:
            return None
        return int(pid)
