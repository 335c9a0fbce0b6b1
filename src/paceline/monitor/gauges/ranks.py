"""Which processes of this host are ranks of the run? Those that have made their folder, ``ranks/<host>-<pid>``.

Not every rank descends from our command: srun, mpirun and ssh have daemons start them. A folder that has not been
touched for a while when we begin is of an earlier life; its process number may be a stranger's by now.
"""

from __future__ import annotations

import os
from pathlib import Path

_FRESH_S = 60.0


class RankFolders:
    """The rank folders of one host, as they appear."""

    def __init__(self, folder: Path, host: str, began_unix_s: float) -> None:
        self._folder = folder
        self._host = host
        self._oldest_unix_s = began_unix_s - _FRESH_S
        self._seen: set[str] = set()

    def new_pids(self) -> list[int]:
        """Return the processes of the folders that are new since the last call."""
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
