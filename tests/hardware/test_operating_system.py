from __future__ import annotations

import os

from paceline.hardware.operating_system import LocalFiles


def test_the_hosts_own_files_are_read():
    assert LocalFiles().read("/proc/self/stat").startswith(f"{os.getpid()} ")
    assert str(os.getpid()) in LocalFiles().names("/proc")
    assert LocalFiles().affinity() == os.sched_getaffinity(0)


def test_what_is_not_there_is_none(tmp_path):
    files = LocalFiles(tmp_path)
    assert files.read("/proc/pressure/cpu") is None
    assert list(files.names("/sys/block")) == []


def test_a_folder_reads_as_none(tmp_path):
    assert LocalFiles(tmp_path).read("/") is None


def test_large_files_are_read_whole(tmp_path):
    (tmp_path / "stat").write_text("x" * 200_000)
    assert len(LocalFiles(tmp_path).read("/stat")) == 200_000


def test_odd_bytes_do_no_harm(tmp_path):
    (tmp_path / "comm").write_bytes(b"\xff\xfe name")
    assert LocalFiles(tmp_path).read("/comm").endswith(" name")
