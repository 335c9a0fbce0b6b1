"""A JPEG cut into parts: the pixels of any part are those of the whole, whatever its size and sampling."""

from __future__ import annotations

import io
import shutil
import subprocess
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.making import jpeg, pixels

from paceline.data.convert.convert import Options, convert
from paceline.data.convert.lossless import in_intervals, jpegtran
from paceline.data.format.jpeg import JpegFrame, NotAJpeg, best_interval, has_all_bits, header_of, intervals_of
from paceline.data.loader.loader import Loader
from paceline.data.reading.crops import Boxes, CenterCrop
from paceline.data.reading.jpeg_parts import Parts, parts_of
from paceline.data.reading.pictures import Box, Decoder
from paceline.data.sources.found import source_of

SAMPLINGS = ["4:4:4", "4:2:2", "4:2:0"]


def whole_by_pil(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def parts_in(files: list[bytes], boxes: list[Box], *, beyond: bool = False) -> Parts:
    """What has to be decoded of some pictures."""
    headers = [header_of(data) for data in files]
    offsets = [intervals_of(data, header) for data, header in zip(files, headers, strict=True)]
    frames = JpegFrame(*map(np.array, zip(*(header.frame for header in headers), strict=True)))
    sides = (np.array(side) for side in zip(*boxes, strict=True))
    whole = Boxes(*sides, np.zeros(len(boxes), bool))
    return parts_of(frames, [np.empty(0, np.int32) if o is None else o for o in offsets], whole, beyond=beyond)


@pytest.mark.parametrize("colours", [1, 3])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_what_is_told_before_the_picture(sampling, colours):
    data = jpeg(57, 83, colours=colours, subsampling=sampling, restart_marker_rows=1)
    header = header_of(data)
    assert (header.height, header.width, header.components) == (57, 83, colours)
    high = 16 if sampling == "4:2:0" and colours == 3 else 8
    assert (header.unit_height, header.units_high) == (high, -(-57 // high))
    offsets = intervals_of(data, header)
    assert len(offsets) == header.units_high + 1
    assert (offsets[0], offsets[-1]) == (header.body_at, len(data))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(9, 200), st.integers(9, 200), st.sampled_from(SAMPLINGS), st.booleans(), st.integers(0, 99), st.data()
)
def test_a_part_is_that_part_of_the_whole(height, width, sampling, exact, seed, data):
    plain = header_of(jpeg(height, width, subsampling=sampling))
    units = data.draw(st.sampled_from([n for n in range(1, plain.units_wide + 1) if plain.units_wide % n == 0]))
    packed = jpeg(height, width, seed, subsampling=sampling, restart_marker_blocks=units)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = Box(top, left, data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left)))
    header = header_of(packed)
    offsets = intervals_of(packed, header)
    assert len(offsets) == header.units_high * header.units_wide // units + 1
    decoder = Decoder(exact=exact)
    other = jpeg(24, 30, seed + 1, restart_marker_rows=1)  # before and behind it in the batch
    parts = parts_in([other, packed, other], [Box(0, 0, 24, 30), box, Box(9, 9, 2, 2)], beyond=decoder.looks_beyond)
    part = decoder.part(memoryview(packed), parts, 1, box).copy()
    whole = decoder.whole(memoryview(packed))
    assert np.array_equal(part, whole[top : top + box.height, left : left + box.width])


def test_exact_pixels_are_those_of_pil():
    data = jpeg(64, 64, quality=95)
    assert np.array_equal(Decoder(exact=True).whole(memoryview(data)), whole_by_pil(data))
    apart = np.abs(Decoder().whole(memoryview(data)).astype(int) - whole_by_pil(data))
    assert apart.mean() < 6  # levels of 255, on short waves of colour


def test_a_part_is_a_picture_for_any_reader():
    data = jpeg(160, 96, subsampling="4:4:4", restart_marker_blocks=3)
    alone = parts_in([data], [Box(88, 24, 24, 48)]).alone(0, memoryview(data))
    assert np.array_equal(whole_by_pil(bytes(alone)), whole_by_pil(data)[88:112, 24:72])


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"restart_marker_blocks": 3}])
def test_where_rows_are_not_made_of_intervals_nothing_can_be_cut(how):
    data, other = jpeg(64, 80, **how), jpeg(64, 80, restart_marker_rows=1)
    assert intervals_of(data, header_of(data)) is None
    assert parts_in([data, other, data], [Box(0, 0, 9, 9)] * 3).cut == [False, True, False]


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8\xff\xda", b"GIF89a", b"\xff\xd8\xff\xc0\x00\x03\x08"])
def test_what_is_no_jpeg(data):
    with pytest.raises(NotAJpeg):
        header_of(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_damage_is_told_or_harmless(seed, wounds):
    """Whatever bytes are changed or cut off: an answer, or NotAJpeg."""
    chance = np.random.default_rng(seed)
    data = bytearray(jpeg(40, 40, restart_marker_rows=1, progressive=seed % 2 == 1))
    for _ in range(wounds):
        data[int(chance.integers(0, min(len(data), 700)))] = int(chance.integers(0, 256))
    data = bytes(data[: int(chance.integers(2, len(data) + 1))])
    try:
        header = header_of(data)
    except NotAJpeg:
        return
    offsets = intervals_of(data, header)
    assert offsets is None or (np.diff(offsets) > 0).all()
    with suppress(NotAJpeg):
        has_all_bits(data)


@pytest.mark.skipif(jpegtran() is None, reason="jpegtran (libjpeg-turbo-progs) is not installed")
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"restart_marker_blocks": 7}])
def test_jpegtran_changes_no_pixel(how, sampling):
    data = jpeg(75, 90, subsampling=sampling, **how)
    made = in_intervals(data)
    assert made != data
    header = header_of(made)
    assert header.is_cut
    assert not header.progressive
    assert intervals_of(made, header) is not None
    assert np.array_equal(whole_by_pil(made), whole_by_pil(data))
    assert in_intervals(made) is made  # it is done


def without_scans(data: bytes, count: int) -> bytes:
    """A progressive JPEG without its last scans, and without the tables of the first of these."""
    places = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    table = data.rfind(b"\xff\xc4", places[-count - 1], places[-count])
    return data[: table if table > 0 else places[-count]] + b"\xff\xd9"


@pytest.mark.skipif(jpegtran() is None, reason="jpegtran (libjpeg-turbo-progs) is not installed")
@pytest.mark.parametrize("colours, scans", [(1, 6), (3, 10)])
def test_a_progressive_jpeg_without_its_last_scans_keeps_its_pixels(colours, scans):
    data = jpeg(75, 90, colours=colours, progressive=True)
    assert data.count(b"\xff\xda") == scans
    for count in range(1, scans - 1):
        part = without_scans(data, count)
        assert np.array_equal(whole_by_pil(in_intervals(part)), whole_by_pil(part))
    assert not header_of(in_intervals(data)).progressive


@pytest.mark.parametrize("width, units", [(384, 3), (256, 4), (352, 2), (368, 1), (400, 5), (16, 1)])
def test_intervals_divide_rows(width, units):
    assert best_interval(header_of(jpeg(32, width, subsampling="4:2:0"))) == units


def test_what_cannot_be_cut_stays_as_it_is():
    assert in_intervals(b"no picture") == b"no picture"
    cut_off = jpeg(75, 90)[:300]
    assert in_intervals(cut_off) == cut_off


@pytest.mark.skipif(shutil.which("cjpeg") is None, reason="cjpeg (libjpeg-turbo-progs) is not installed")
@pytest.mark.parametrize("sampling", ["4x2", "2x4", "1x4", "3x1", "4x1", "2x2,1x2,1x2", "1x1,2x2,2x2", "4x1,2x1,1x1"])
@pytest.mark.parametrize("restart", ["-restart 1B", ""])
def test_colours_stored_in_unusual_ways_have_the_pixels_of_pil(tmp_path, sampling, restart):
    folder = tmp_path / "in"
    folder.mkdir()
    ppm = io.BytesIO()
    Image.fromarray(pixels(96, 128)).save(ppm, "PPM")
    command = ["cjpeg", "-sample", sampling, *restart.split()]
    data = subprocess.run(command, input=ppm.getvalue(), capture_output=True, check=True).stdout
    (folder / "0.jpg").write_bytes(data)
    options = Options(verbatim=bool(restart))
    convert(source_of(folder, None), tmp_path / "out", options, 1, lambda done, whole: None)
    (images,) = next(iter(Loader(tmp_path / "out", 1, transform=CenterCrop(40, resize=80), exact=True)))
    expected = whole_by_pil(data)[24:72, 40:88]  # 48 of 96 pixels
    with_pil = Image.fromarray(expected).resize((40, 40), Image.Resampling.BILINEAR)
    assert np.abs(images[0].permute(1, 2, 0).numpy().astype(int) - np.asarray(with_pil)).max() <= 1
