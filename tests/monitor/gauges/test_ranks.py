from __future__ import annotations

import os
import time

from paceline.monitor.gauges.ranks import RankFolders


def test_ranks_of_this_host_appear_once(tmp_path):
    ranks = RankFolders(tmp_path, "node-1", time.time())
    assert ranks.new_pids() == []
    for name in ("node-1-100", "node-2-200", "node-1-x", "note-1"):
        (tmp_path / name).mkdir()
    assert ranks.new_pids() == [100]
    (tmp_path / "node-1-101").mkdir()
    assert ranks.new_pids() == [101]
    assert ranks.new_pids() == []


def test_an_earlier_life_is_not_taken_for_ours(tmp_path):
    (tmp_path / "node-100").mkdir()
    os.utime(tmp_path / "node-100", (time.time() - 600,) * 2)
    assert RankFolders(tmp_path, "node", time.time()).new_pids() == []


def test_no_folder_yet(tmp_path):
    assert RankFolders(tmp_path / "ranks", "node", time.time()).new_pids() == []
