"""Captures that are broken: what can be read is read, and what cannot is told with its place."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from tests.traces.read.test_kineto import kernel

from paceline.traces.analyze.gpu_time import break_down
from paceline.traces.capture import Capture
from paceline.traces.read import kineto
from paceline.traces.read.content import NotACapture

TEN = [kernel(10 * i, 5, correlation=i) for i in range(10)]
TOP = {"distributedInfo": {"rank": 4, "world_size": 8}}
REAL = Path(__file__).parents[1] / "captures" / "dlrm8_rank0.json.gz"


def text_of(events=TEN) -> str:
    return json.dumps({**TOP, "traceEvents": events}, indent=1)


def read(folder: Path, content: str | bytes, name: str = "broken.json") -> Capture:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return kineto.read(path)


def test_json_that_ends_in_the_middle(tmp_path):
    text = text_of()
    found = read(tmp_path, text[: text.rindex('"cat"') + 3])
    assert len(found.events) == 9
    assert found.rank == 4
    (said,) = found.problems
    assert "9 events were read" in said
    assert "1 were lost, the first at character" in said


def test_a_gzip_that_ends_in_the_middle(tmp_path):
    packed = gzip.compress(text_of([kernel(10 * i, 5, name=f"k{i * 7919 % 1000}") for i in range(2000)]).encode())
    found = read(tmp_path, packed[: len(packed) // 2], "broken.json.gz")
    assert 500 < len(found.events) < 1500
    assert "ends early" in found.problems[0]


@pytest.mark.parametrize(
    "name, wrong",
    [
        (r"a\\b", r"a\b"),  # a backslash that nobody escaped
        ("say x", 'say "x"'),  # quotes that nobody escaped
        ("a b", "a\tb"),
        ("a b", "a\x01b"),
    ],
    ids=["backslash", "quotes", "tab", "control"],
)
def test_a_name_that_is_no_json(tmp_path, name, wrong):
    text = text_of([*TEN, kernel(100, 7, name="HERE", correlation=10)]).replace("HERE", wrong)
    found = read(tmp_path, text)
    assert len(found.events) == 11
    assert break_down(found.events).compute_ns == 57_000
    assert list(found.events.correlation) == list(range(11))


def test_bytes_that_are_no_utf_8(tmp_path):
    content = text_of([*TEN, kernel(100, 7, name="HERE")]).encode().replace(b"HERE", b"a\xff\xfeb")
    assert len(read(tmp_path, content).events) == 11


def test_numbers_that_are_too_large_or_none(tmp_path):
    text = text_of([*TEN, kernel(100, 7, correlation=123456789)]).replace("123456789", "123456789012345678901234567890")
    found = read(tmp_path, text)
    assert (len(found.events), int(found.events.correlation[-1])) == (11, -1)
    text = text_of([*TEN, kernel(123456, 7)]).replace("123456", "NaN")
    found = read(tmp_path, text)
    assert len(found.events) == 10
    assert "1 were lost" in found.problems[0]


@pytest.mark.parametrize("ts, dur", [("1e300", 5), ("-9e17", 5), ("10", "1e300")])
def test_times_that_no_clock_shows_are_left_out(tmp_path, ts, dur):
    text = text_of([*TEN, kernel(123456, 654321)]).replace("123456", ts).replace("654321", str(dur))
    found = read(tmp_path, text)
    assert break_down(found.events).span_ns == 95_000
    assert "1 GPU events have impossible times" in found.problems[0]


def test_half_of_a_surrogate_pair_is_no_text(tmp_path):
    found = read(tmp_path, text_of([*TEN, kernel(100, 5, name="HERE")]).replace("HERE", r"a\ud83db"))
    assert len(found.events) == 11
    assert "a?b" in found.events.names


def test_durations_below_zero_count_as_nothing(tmp_path):
    found = read(tmp_path, text_of([*TEN, kernel(100, -3)]))
    assert break_down(found.events).compute_ns == 50_000
    assert "1 GPU events end before they begin" in found.problems[0]


def test_events_in_any_order(tmp_path):
    shuffled = random.Random(0).sample(TEN, len(TEN))
    assert break_down(read(tmp_path, text_of(shuffled)).events) == break_down(read(tmp_path, text_of()).events)


@pytest.mark.parametrize("content", ['{"traceEvents": null}', '{"traceEvents": null, "deviceProperties": [{"id": 0}]}'])
def test_other_objects_of_a_file_are_no_events(tmp_path, content):
    with pytest.raises(NotACapture, match="not a profiler capture"):
        read(tmp_path, content)


def test_json_that_is_something_else(tmp_path):
    with pytest.raises(NotACapture, match="it has no traceEvents"):
        read(tmp_path, '{"loss": [1.0, 0.5]}')


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b"\n "], ids=["bare", "byte order mark", "space"])
def test_a_list_of_events_alone_is_whole(tmp_path, mark):
    found = read(tmp_path, mark + json.dumps(TEN).encode())
    assert (len(found.events), found.problems) == (10, [])


def test_a_list_of_events_that_does_not_end(tmp_path):
    found = read(tmp_path, json.dumps(TEN)[:-1])
    assert len(found.events) == 10
    assert "damaged" in found.problems[0]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_done_to_a_capture_it_is_read_or_refused(tmp_path, seed):
    """Bytes are flipped, cut out and put in; only `NotACapture` may come of it, and what is read adds up."""
    chance = random.Random(seed)
    data = bytearray(gzip.decompress(REAL.read_bytes()))
    for _ in range(chance.randint(1, 5)):
        place = chance.randrange(len(data))
        what = chance.choice(["flip", "cut", "put", "end"])
        if what == "flip":
            data[place] = chance.randrange(256)
        elif what == "cut":
            del data[place : place + chance.randint(1, 500)]
        elif what == "put":
            data[place:place] = chance.choice([b'"', b"\\", b"{", b"}", b"[", b"\x00", b"\xff", b"1e999", b"NaN"])
        else:
            del data[max(1000, place) :]
    try:
        found = read(tmp_path, bytes(data))
    except NotACapture:
        return
    parts = break_down(found.events)
    assert parts.idle_ns + parts.compute_ns + parts.exposed_communication_ns + parts.exposed_copy_ns == parts.span_ns


def test_a_time_with_two_points_is_lost_and_takes_nothing_with_it(tmp_path):
    broken = text_of().replace('"ts": 30', '"ts": 3..0', 1)
    found = read(tmp_path, broken)
    assert len(found.events) >= 9
    assert "damaged" in found.problems[0]


def test_half_a_surrogate_beside_the_events(tmp_path):
    text = json.dumps({"host_name": "\udc80", **TOP, "traceEvents": TEN})
    found = read(tmp_path, text)
    assert (len(found.events), found.rank) == (10, 4)
