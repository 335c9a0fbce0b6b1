from __future__ import annotations

import errno
import gc
import json
import math
import os
import struct
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.inprocess.identity import IdentityMap
from paceline.inprocess.recorder import files
from paceline.inprocess.recorder.files import Appender, another, make_json, replace_json, to_json
from paceline.inprocess.recorder.steps.parts import StepRow
from paceline.inprocess.recorder.steps.rows import as_f32, pack_step
from paceline.record.layout import STEP, STEP_FIELDS

NAN = math.nan


def test_records_are_appended_whole(tmp_path):
    file = Appender(str(tmp_path / "rows.bin"))
    assert not (tmp_path / "rows.bin").exists()
    file.write(b"abc")
    file.write(b"")
    file.write_json({"a": 1})
    assert (tmp_path / "rows.bin").read_bytes() == b'abc{"a":1}\n'
    file.close()
    file.close()
    Appender(str(tmp_path / "rows.bin")).write(b"more")
    assert (tmp_path / "rows.bin").read_bytes() == b'abc{"a":1}\nmore'


def test_a_write_that_the_kernel_cuts_is_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    Appender(str(tmp_path / "rows.bin")).write(b"0123456789")
    assert (tmp_path / "rows.bin").read_bytes() == b"0123456789"


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        Appender(str(tmp_path / "rows.bin")).write(b"x")


def test_the_file_is_not_passed_on_to_programs_started_by_the_program(tmp_path):
    file = Appender(str(tmp_path / "rows.bin"))
    file.write(b"x")
    assert not os.get_inheritable(file._descriptor)
    file.close()


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "meta.json"
    for number in range(3):
        replace_json(str(path), {"n": number, "text": "x" * number * 1000})
        assert json.loads(path.read_bytes())["n"] == number
    assert [p.name for p in tmp_path.iterdir()] == ["meta.json"]


def test_what_json_has_no_word_for():
    class Thing:
        def __str__(self):
            return "a thing"

    record = {"nan": NAN, "inf": [math.inf, -math.inf, 1.5], "thing": Thing(), "deep": {"t": (NAN, 2), 3: None}}
    assert json.loads(to_json(record)) == {
        "nan": None,
        "inf": [None, None, 1.5],
        "thing": "a thing",
        "deep": {"t": [None, 2], "3": None},
    }
    assert json.loads(to_json({"thing": Thing(), "é": "ü\n"})) == {"thing": "a thing", "é": "ü\n"}


def test_a_path_that_is_no_text_does_not_spoil_the_record():
    """Python keeps the bytes of such names as lone surrogates, which no JSON reader takes."""
    record = msgspec.json.decode(to_json({"argv": [os.fsdecode(b"train-\xff.py"), "😀"], "x": NAN}))
    assert record["argv"] == ["train-?.py", "😀"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
@settings(deadline=None)
def test_any_record_is_one_line_that_both_readers_take(record):
    line = to_json(record)
    assert b"\n" not in line
    json.loads(line)
    msgspec.json.decode(line)


# -- rows --------------------------------------------------------------------------------------------


def row(**changes):
    values = {
        "end_ns": 2**40,
        "wall_ns": 11_000_000,
        "slots_ns": tuple(range(1_000_000, 12_000_000, 1_000_000)),
        "flags": 3,
        "micro_steps": 2,
        "synced": 1,
        "fetches": 4,
        "fetch_cpu_ns": 5e5,
        "forward_blocked_ns": NAN,
        "backward_blocked_ns": 7e5,
        "samples": 64.0,
        "loss": None,
    }
    return StepRow(**(values | changes))


def unpacked(packed: bytes) -> dict[str, float]:
    return dict(zip(STEP_FIELDS, STEP.unpack(packed), strict=True))


def test_a_row_keeps_what_it_says():
    found = unpacked(pack_step(7, row(), 9, 0.5, 1e9))
    assert [found[name] for name in STEP_FIELDS[:6]] == [7, 9, 2, 1, 4, 2**40]
    assert found["wall_s"] == pytest.approx(0.011)
    assert [found[name] for name in STEP_FIELDS[7:18]] == pytest.approx([n / 1e3 for n in range(1, 12)])
    assert (found["fetch_cpu_s"], found["backward_blocked_s"]) == pytest.approx((5e-4, 7e-4))
    assert math.isnan(found["forward_blocked_s"])
    assert (found["samples"], found["loss"], found["device_bytes"]) == (64.0, 0.5, 1e9)


def test_counts_that_do_not_fit_saturate():
    found = unpacked(pack_step(2**32 + 5, row(micro_steps=70_000, synced=70_000, fetches=2**20), 2**17 + 4, NAN, NAN))
    assert (found["micro_steps"], found["synced"], found["fetches"]) == (65_535,) * 3
    assert (found["index"], found["flags"]) == (5, 4)


@given(st.floats())
@settings(deadline=None)
def test_any_loss_fits(loss):
    value = unpacked(pack_step(0, row(), 0, loss, NAN))["loss"]
    if math.isnan(loss):
        assert math.isnan(value)
    elif abs(loss) <= 3.4e38:
        assert value == struct.unpack("f", struct.pack("f", loss))[0]
    else:
        assert value == math.copysign(math.inf, loss)


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 3.4e38, -3.4e38])
def test_what_a_float_holds_stays(value):
    assert as_f32(value) == value


# -- identity ----------------------------------------------------------------------------------------


class Thing:
    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = None


def test_values_by_identity_of_things_that_have_no_hash():
    seen = IdentityMap()
    first, second = Thing(), Thing()
    assert seen.set(first, 1) == 1
    seen.set(second, 2)
    assert (seen.get(first), seen.get(second), seen.get(Thing())) == (1, 2, None)


def test_an_entry_ends_with_its_object():
    seen = IdentityMap()
    thing = Thing()
    seen.set(thing, 1)
    number = id(thing)
    del thing
    gc.collect()
    for _ in range(1000):  # whoever gets the same id next must not inherit
        other = Thing()
        assert seen.get(other) is None
        if id(other) == number:
            break


def test_many_objects_that_are_gone_leave_no_trace():
    seen = IdentityMap()
    kept = [Thing() for _ in range(10)]
    for number, thing in enumerate(kept):
        seen.set(thing, number)
    for _ in range(20_000):
        seen.set(Thing(), -1)
    assert len(seen.entries) < 5_000
    assert [seen.get(thing) for thing in kept] == list(range(10))


def test_many_objects_that_live_are_not_walked_at_every_new_one():
    seen = IdentityMap()
    kept = [Thing() for _ in range(30_000)]
    begun = time.process_time()
    for number, thing in enumerate(kept):
        seen.set(thing, number)
    assert time.process_time() - begun < 2
    assert all(seen.get(thing) == number for number, thing in enumerate(kept))


def test_a_folder_is_taken_once(tmp_path):
    """Two containers may share a host name and process ids: the second one takes another name."""
    path = tmp_path / "meta.json"
    assert make_json(str(path), {"own": 1})
    assert not make_json(str(path), {"own": 2})
    assert json.loads(path.read_text()) == {"own": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["meta.json"]
    name = another("ranks/box-a-17")
    assert name.startswith("ranks/box-a.") and name.endswith("-17")
    assert another("ranks/box-a-17") != name
