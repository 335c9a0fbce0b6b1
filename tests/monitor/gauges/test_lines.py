from __future__ import annotations

import errno
import json
import multiprocessing
import os

import pytest

from paceline.monitor.gauges.lines import FileInUse, LineFile


def read(path):
    return path.read_text().splitlines()


def test_lines_are_whole_and_in_order(tmp_path):
    path = tmp_path / "gauges" / "host.jsonl"
    lines = LineFile(path)
    for number in range(3):
        lines.append({"n": number, "name": "µ"})
    lines.close()
    lines.close()
    assert [json.loads(line) for line in read(path)] == [{"n": n, "name": "µ"} for n in range(3)]


def test_a_line_torn_by_an_earlier_writer_spoils_nothing_else(tmp_path):
    path = tmp_path / "host.jsonl"
    path.write_text('{"n":0}\n{"n":1,"ga')
    lines = LineFile(path)
    lines.append({"n": 2})
    assert read(path) == ['{"n":0}', '{"n":1,"ga', '{"n":2}']


def test_a_file_that_ended_well_gets_no_blank_line(tmp_path):
    path = tmp_path / "host.jsonl"
    path.write_text('{"n":0}\n')
    LineFile(path).append({"n": 1})
    assert read(path) == ['{"n":0}', '{"n":1}']


def test_two_writers_at_once_are_refused(tmp_path):
    first = LineFile(tmp_path / "host.jsonl")
    with pytest.raises(FileInUse):
        LineFile(tmp_path / "host.jsonl")
    first.close()
    LineFile(tmp_path / "host.jsonl").close()


def hold(path, ready):
    LineFile(path).append({"from": "child"})
    ready.set()
    while True:
        os.read(os.pipe()[0], 1)


def test_the_lock_ends_with_its_process(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=hold, args=(tmp_path / "host.jsonl", ready))
    child.start()
    try:
        assert ready.wait(30)
        with pytest.raises(FileInUse):
            LineFile(tmp_path / "host.jsonl")
    finally:
        child.kill()
        child.join()
    LineFile(tmp_path / "host.jsonl").append({"from": "parent"})
    assert len(read(tmp_path / "host.jsonl")) == 2


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    lines = LineFile(tmp_path / "host.jsonl")
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(OSError, match="No space left"):
        lines.append({"n": 1})


def test_a_line_that_was_written_in_part_is_an_error(tmp_path, monkeypatch):
    lines = LineFile(tmp_path / "host.jsonl")
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) - 1)
    with pytest.raises(OSError, match="No space left"):
        lines.append({"n": 1})


def test_a_filesystem_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    LineFile(tmp_path / "host.jsonl").append({"n": 1})
    assert read(tmp_path / "host.jsonl") == ['{"n":1}']
