"""What does a rank see of what another one makes at the same time?"""

from __future__ import annotations

from paceline.inprocess.sandbox.write_sandbox import _is_new


def test_what_another_rank_makes_between_two_looks_stays_new(tmp_path):
    """A folder that was not there at the first question and is there at the next one is not taken for an old one."""
    path = tmp_path / "checkpoint-3"

    def born_s(asked):
        path.mkdir(exist_ok=True)  # the other rank makes it now

    assert _is_new(str(path), born_s, 100.0)


def test_what_was_there_before_is_old_and_what_came_later_is_new(tmp_path):
    assert not _is_new(str(tmp_path), lambda _: 99.0, 100.0)
    assert not _is_new(str(tmp_path), lambda _: None, 100.0)  # the file system does not tell
    assert _is_new(str(tmp_path), lambda _: 101.0, 100.0)
    assert _is_new(str(tmp_path / "none"), lambda _: None, 100.0)
