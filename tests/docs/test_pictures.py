"""Is the recording of a terminal drawn as it was, small, and without anything that GitHub would not show?"""

from __future__ import annotations

import json
import os
import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import pictures
import pytest
from _recording import CommandFailed, Recording, loads, record
from _screen import PALETTE, PLAIN, Screen, Style
from _svg import END_S, LONGEST_WAIT_S, READING_S, TYPED_S, film_of, render

SVG = "{http://www.w3.org/2000/svg}"


def screen(*sent: str, columns: int = 20) -> Screen:
    made = Screen(columns)
    for text in sent:
        made.feed(text)
    return made


def words(made: Screen) -> list[str]:
    return ["".join(character for character, _ in line).rstrip() for line in made.cells]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("10%\r20%", ["20%"]),
        ("long line\r\x1b[2Kshort", ["short"]),
        ("one\r\ntwo\r\n\x1b[2A\x1b[Kthree", ["three", "two", ""]),
        ("one\r\ntwo\x1b[1A\r\x1b[Jnew", ["new", ""]),
        ("abc\x1b[2D\x1b[KX", ["aX"]),
        ("\x1b]0;title\x07text\x1b[?25l\x1b[?25h", ["text"]),
        ("0123456789ab", ["0123456789", "ab"]),
        ("a\tb", ["a       b"]),
    ],
)
def test_control_sequences(sent: str, shown: list[str]) -> None:
    assert words(screen(sent, columns=10)) == shown


def test_a_sequence_may_come_in_two_pieces() -> None:
    assert words(screen("one\x1b", "[1;3", "1mtwo\x1b[0m")) == ["onetwo"]


def test_styles_are_kept() -> None:
    made = screen("\x1b[1;31mred\x1b[0m \x1b[2mdim\x1b[22m \x1b[38;5;196mc\x1b[38;2;1;2;3md\x1b[39me")
    assert made.lines()[0] == (
        (0, "red", Style(PALETTE[1], bold=True)),
        (4, "dim", Style(dim=True)),
        (8, "c", Style("#ff0000")),
        (9, "d", Style("#010203")),
        (10, "e", PLAIN),
    )


def recording(*events: tuple[float, str, str], rows: int = 5) -> Recording:
    return Recording(20, rows, "CPU, 2 cores", "2026-11-24", events)


WAITED = recording((0.0, "i", "train it"), (100.0, "o", "10%\r"), (100.5, "o", "20%\r\n"), (101.0, "i", "ls"))


def test_long_waits_are_shortened_and_short_ones_are_not() -> None:
    film = film_of(WAITED)
    times = [still[0] for still in film.stills]
    typed = 2 * TYPED_S
    assert times[2:4] == pytest.approx([typed + LONGEST_WAIT_S, typed + LONGEST_WAIT_S + 0.5])
    assert times[4] == pytest.approx(times[3] + READING_S)
    assert film.now_s == pytest.approx(times[4] + TYPED_S + END_S)
    assert [still[2] for still in film.stills][2] == "real time 1:40"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_every_version_of_a_line_is_drawn_and_the_shortening_is_said() -> None:
    shown = texts(render(WAITED))
    assert {"10%", "20%", "real time 1:40"} <= set(shown)
    assert f"CPU, 2 cores, 2026-11-24 · waits longer than {LONGEST_WAIT_S:g} s are shortened" in shown


def visible_at(svg: str, share: float) -> set[str]:
    """The lines that are visible at a share of the animation, by its keyframes."""
    frames = dict(re.findall(r"@keyframes (k\d+)\{((?:[^{}]*\{[^{}]*\})*)\}", svg))
    found = set()
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        steps = re.findall(r"([\d.]+)%\{visibility:(\w+)\}", frames[group.get("class", "").split()[1]])
        state = [value for at, value in steps if float(at) <= 100 * share]
        if state and state[-1] == "visible":
            found |= {"".join(text.itertext()) for text in group.iter(f"{SVG}text")}
    return found


def test_a_line_that_was_overwritten_goes_when_the_new_one_comes() -> None:
    svg, length_s = render(WAITED), film_of(WAITED).now_s
    before = (2 * TYPED_S + LONGEST_WAIT_S + 0.2) / length_s
    assert visible_at(svg, before) >= {"10%"}
    assert "20%" not in visible_at(svg, before)
    assert "10%" not in visible_at(svg, 0.99)
    assert "20%" in visible_at(svg, 0.99)


def test_long_sessions_scroll() -> None:
    lines = "".join(f"line {number}\r\n" for number in range(20))
    svg = render(recording((0.0, "i", "seq"), (1.0, "o", lines), rows=5))
    moved = [float(y) for y in re.findall(r"translateY\((-?[\d.]+)px\)", svg)]
    assert min(moved) == -18 * (20 + 1 - 5)


@pytest.mark.parametrize("text", ["<b>&amp;", "a\x00b", "\x1b[31m\u2588\u2588\x1b[0m"])
def test_anything_printed_gives_well_formed_xml(text: str) -> None:
    ET.fromstring(render(recording((0.0, "i", "cat"), (1.0, "o", text))))


def assert_shown_by_github(svg: str) -> None:
    tags = {element.tag.removeprefix(SVG) for element in ET.fromstring(svg).iter()}
    assert tags <= {"svg", "title", "style", "rect", "path", "g", "text"}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|\son\w+=", svg)


def test_a_session_is_recorded_with_its_timing(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "TERM": "xterm"}
    commands = ["test -t 1 && stty size", "printf A; sleep 1; printf B"]
    events = record(commands, tmp_path, env, (90, 25))
    assert [text for _, kind, text in events if kind == "i"] == commands
    assert [text for _, kind, text in events if kind == "o"] == ["25 90\r\n", "A", "B"]
    assert 0.25 < events[-1][0] - events[-2][0] < 5
    made = Recording(90, 25, "m", "d", tuple(events))
    assert len(loads(made.dumps()).events) == len(events)
    assert json.loads(made.dumps().splitlines()[0])["version"] == 2


def test_a_command_that_fails_ends_the_recording(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="`echo no; exit 2` ended with exit code 2"):
        record(["echo no; exit 2"], tmp_path, dict(os.environ), (80, 24))


def test_the_picture_is_drawn_from_the_recording() -> None:
    kept = pictures.TERMINAL.read_text(encoding="utf-8")
    assert kept == render(loads(pictures.CAST.read_text(encoding="utf-8")))
    assert_shown_by_github(kept)


@pytest.mark.parametrize("picture", [pictures.TERMINAL, pictures.REPORT, pictures.CAST], ids=lambda path: path.name)
def test_pictures_are_small(picture: Path) -> None:
    assert picture.stat().st_size <= pictures.MOST_BYTES


def test_the_picture_of_the_report_is_a_png_of_its_size() -> None:
    head = pictures.REPORT.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", head[16:]) == pictures.PAGE


def test_no_path_of_the_recording_machine_is_shown() -> None:
    text = pictures.CAST.read_text(encoding="utf-8")
    assert [word for word in ("/tmp/", "/root", "/home/", "/work/") if word in text] == []


def test_the_recording_is_of_the_session_that_the_script_makes() -> None:
    events = loads(pictures.CAST.read_text(encoding="utf-8")).events
    assert tuple(text for _, kind, text in events if kind == "i") == pictures.SESSION
