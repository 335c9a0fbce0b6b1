"""Images keep their mode and their depth, and shrink as PIL shrinks them; what is no image is refused."""

from __future__ import annotations

import gc
import io
import struct
import sys
import threading
import types
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image
from tests.data.making import jpeg, pixels

from paceline.core.errors import UsageError
from paceline.data import CenterCrop, FileDataset, Loader, ShardedDataset
from paceline.data.convert.convert import Options, convert
from paceline.data.format.image_modes import NotAnImage, column_mode, image_header
from paceline.data.reading.merged import MergedShards
from paceline.data.sources import BadSample
from paceline.data.sources.dataset import DatasetSource
from paceline.data.sources.image_folder import image_folder

IDS = (np.arange(40 * 48).reshape(40, 48) % 21).astype(np.uint8)
DEEP = (np.arange(40 * 48).reshape(40, 48) * 33).astype(np.uint16)


def png(image: Image.Image, written: str = "PNG", **how: object) -> bytes:
    file = io.BytesIO()
    image.save(file, written, **how)
    return file.getvalue()


def by_opencv(values: np.ndarray, suffix: str) -> bytes:
    return cv2.imencode(suffix, values)[1].tobytes()


def palette() -> Image.Image:
    image = Image.fromarray(IDS)
    image.putpalette(np.random.default_rng(0).integers(0, 255, 768).tolist())
    return image


def gray() -> Image.Image:
    return Image.fromarray(pixels(40, 48, colours=1))


def images_in(folder, files: dict[str, bytes], **settings: object) -> list[np.ndarray]:
    """Convert a folder of images, and return what the loader gives of each, in order."""
    (folder / "pictures" / "a").mkdir(parents=True)
    for name, data in files.items():
        (folder / "pictures" / "a" / name).write_bytes(data)
    convert(image_folder(folder / "pictures"), folder / "shards", Options(seed=None), 1, lambda done, whole: None)
    loader = Loader(folder / "shards", 1, transform=dict, collate_fn=list, threads=0, **settings)
    return [sample["image"] for (sample,) in loader]


RGB16 = np.stack([DEEP, DEEP[::-1], DEEP // 2], -1)
RGBA16 = np.dstack([RGB16, 65535 - DEEP])
KINDS = {
    "P": ("0.png", lambda: png(palette()), IDS),
    "1": ("0.png", lambda: png(Image.fromarray(IDS > 9)), IDS > 9),
    "L": ("0.png", lambda: png(Image.fromarray(IDS)), IDS),
    "I;16": ("0.png", lambda: png(Image.fromarray(DEEP)), DEEP),
    "RGB;16": ("0.png", lambda: by_opencv(RGB16[..., ::-1], ".png"), RGB16),
    "RGBA;16": ("0.png", lambda: by_opencv(RGBA16[..., [2, 1, 0, 3]], ".png"), RGBA16),
    "RGBA": ("0.png", lambda: png(Image.fromarray(np.dstack([pixels(40, 48), IDS]))), np.dstack([pixels(40, 48), IDS])),
    "F": ("0.tif", lambda: png(Image.fromarray(DEEP / np.float32(7)), "TIFF"), DEEP / np.float32(7)),
    "ppm": ("0.ppm", lambda: by_opencv(RGB16[..., ::-1], ".ppm"), RGB16),
    "tif": ("0.tif", lambda: by_opencv(RGB16[..., ::-1], ".tiff"), RGB16),
}


@pytest.mark.parametrize("kind", KINDS)
def test_mode_and_depth_are_kept(tmp_path, kind):
    name, made, truth = KINDS[kind]
    (found,) = images_in(tmp_path, {name: made()})
    assert found.dtype == truth.dtype
    assert np.array_equal(found, truth)
    (column, _) = ShardedDataset(tmp_path / "shards").contents.columns
    assert column.mode == {"ppm": "RGB;16", "tif": "RGB;16"}.get(kind, kind)


def coloured(*colours: tuple[int, int, int]) -> bytes:
    image = Image.fromarray(np.zeros((4, 4), np.uint8))
    image.putpalette([value for colour in colours for value in colour])
    return png(image)


RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.mark.parametrize(
    ("images", "differ"),
    [
        ([coloured(RED), coloured(BLUE)], True),
        ([coloured(RED, BLUE), coloured(RED)], False),  # an encoder left the unused colour away
        ([coloured(RED, BLUE), coloured(RED), coloured(RED, RED)], True),
    ],
)
def test_palettes_that_differ_are_told(tmp_path, caplog, images, differ):
    files = {f"{number}.png": data for number, data in enumerate(images)}
    assert all((ids == 0).all() for ids in images_in(tmp_path, files))
    assert ("palettes of their own" in caplog.text) == differ
    dataset = ShardedDataset(tmp_path / "shards")
    assert (dataset.contents.column("image").palette == "each") == differ
    caplog.clear()
    of_files = FileDataset(tmp_path / "pictures")
    assert ("palettes of their own" in caplog.text) == differ
    assert (of_files.columns[0].palette == "each") == differ


def test_palettes_of_merged_data_sets_are_compared(tmp_path, caplog):
    for name, colour in (("one", RED), ("two", BLUE)):
        images_in(tmp_path / name, {"0.png": coloured(colour)})
    parts = [ShardedDataset(tmp_path / name / "shards") for name in ("one", "two")]
    assert not caplog.text
    assert MergedShards(parts).contents.column("image").palette == "each"


def test_gray_jpegs_stay_gray(tmp_path):
    data = jpeg(40, 48, colours=1)
    (found,) = images_in(tmp_path, {"0.jpg": data}, exact=True)
    assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(data))))


def test_a_column_gets_the_mode_that_holds_all_of_its_images(tmp_path):
    photo, alpha = Image.fromarray(pixels(40, 48)), gray()
    mixed = {
        "0.png": png(photo),
        "1.png": png(gray()),
        "2.png": png(palette()),
        "3.png": png(Image.merge("LA", (alpha, alpha))),
    }
    found = images_in(tmp_path, mixed)
    for one, data in zip(found, mixed.values(), strict=True):
        assert np.array_equal(one, np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")))


@pytest.mark.parametrize(
    ("modes", "one"),
    [
        (["L", "RGB"], "RGB"),
        (["RGB", "CMYK"], "each"),
        (["P"], "P"),
        (["1", "L"], "L"),
        (["CMYK"], "CMYK"),
        (["RGB", "LA"], "RGBA"),
        (["I;16", "RGB"], "each"),
        (["F", "L"], "each"),
        (["I;16", "I"], "I"),
        ([], ""),
    ],
)
def test_modes_that_hold_others(modes, one):
    assert column_mode(modes) == one


def test_images_that_no_mode_holds_keep_their_own(tmp_path):
    deep, photo = images_in(
        tmp_path, {"0.png": png(Image.fromarray(DEEP)), "1.png": png(Image.fromarray(pixels(40, 48)))}
    )
    assert np.array_equal(deep, DEEP)
    assert np.array_equal(photo, pixels(40, 48))


@pytest.mark.parametrize("kind", ["P", "I;16", "RGB;16", "F"])
def test_a_crop_refuses_images_whose_values_it_would_lose(tmp_path, kind):
    name, made, _ = KINDS[kind]
    images_in(tmp_path, {name: made()})
    with pytest.raises(UsageError, match="values would be lost"):
        Loader(tmp_path / "shards", transform=CenterCrop(16))
    if kind == "P":  # colours, if they are asked for
        ((found, _),) = Loader(tmp_path / "shards", transform=CenterCrop(40, 40), image_mode="RGB")
        truth = np.asarray(Image.open(io.BytesIO(made())).convert("RGB"))[:, 4:44]
        assert np.array_equal(found[0].permute(1, 2, 0).numpy(), truth)


@pytest.mark.parametrize(("high", "wide"), [(300, 260), (900, 1200)])
def test_shrinking_averages_as_pil_does(tmp_path, high, wide):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (high, wide, 3), dtype=np.uint8))
    images_in(tmp_path, {"0.png": png(image)})
    left, top, side = (wide - min(high, wide)) // 2, (high - min(high, wide)) // 2, min(high, wide)
    cropped = image.crop((left, top, left + side, top + side))
    truth = np.asarray(cropped.resize((224, 224), Image.Resampling.BILINEAR))

    def apart(**how: object) -> int:
        ((found, _),) = Loader(tmp_path / "shards", transform=CenterCrop(224, 224, **how))
        return int(np.abs(found[0].permute(1, 2, 0).numpy().astype(int) - truth).max())

    assert apart() <= 1
    assert apart(antialias=False) > 10


def bomb() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 40_000, 40_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"x")) + chunk(b"IEND", b"")


def test_an_image_that_no_decoder_takes_is_skipped_like_others(tmp_path):
    images_in(tmp_path, {"0.png": png(Image.fromarray(pixels(40, 48)))})
    (tmp_path / "pictures" / "a" / "1.png").write_bytes(bomb())
    convert(image_folder(tmp_path / "pictures"), tmp_path / "more", Options(seed=None), 1, lambda done, whole: None)
    for how in (CenterCrop(16), dict):
        loader = Loader(tmp_path / "more", 2, transform=how, on_error="skip", threads=0)
        assert len(list(loader)) == 1
        assert loader.report().bad_samples == 1


def frames(written: str) -> bytes:
    return png(gray(), written, save_all=True, append_images=[gray().rotate(90), gray().rotate(180)])


@pytest.mark.parametrize(
    "data",
    [
        b"<html><body>404 Not Found</body></html>",
        frames("PNG"),
        frames("TIFF"),
        b"\xff\xd8\xff\xe0 cut",
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_what_is_no_image_is_not_converted_as_one(tmp_path, data):
    with pytest.raises(NotAnImage):
        image_header(data)
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    (tmp_path / "pictures" / "a" / "0.jpg").write_bytes(data)
    with pytest.raises(BadSample, match=r"0\.jpg"):
        convert(image_folder(tmp_path / "pictures"), tmp_path / "shards", Options(), 1, lambda done, whole: None)


def test_a_conversion_that_ends_early_leaves_no_thread_to_the_garbage_collector(tmp_path):
    """The collector may come while a thread is started, and would wait there for ever."""
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    (tmp_path / "pictures" / "a" / "0.jpg").write_bytes(b"no image")
    before = threading.active_count()
    gc.disable()
    try:
        with pytest.raises(BadSample):
            convert(image_folder(tmp_path / "pictures"), tmp_path / "shards", Options(), 1, lambda done, whole: None)
        assert threading.active_count() == before
    finally:
        gc.enable()


def test_pixels_of_a_dataset_become_png_only_where_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "photo.jpg"
    path.write_bytes(jpeg(40, 48))

    def opened(turned: bool) -> list[Image.Image]:
        return [Image.open(path).rotate(90) if turned else Image.open(path)] * 3

    module = types.ModuleType("sets_of_images")
    module.files, module.turned = opened(False), opened(True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sets_of_images", module)
    (column,) = DatasetSource("sets_of_images:files").columns
    assert column.kind == "image"
    (value,) = DatasetSource("sets_of_images:files").sample(0).values()
    assert value.data == path.read_bytes()  # type: ignore[union-attr]
    with pytest.raises(UsageError, match=r"--images png keeps every value, about [0-9.]+ .iB; --images jpeg"):
        _ = DatasetSource("sets_of_images:turned").columns
    (value,) = DatasetSource("sets_of_images:turned", images="png").sample(0).values()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(value.data))), np.asarray(module.turned[0]))  # type: ignore


def half_ended(data: bytes) -> bytes:
    """Half of a JPEG with the marker of its end: any reader fills the rest with gray."""
    return data[: len(data) // 2] + b"\xff\xd9"


def zeroed(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def wounded(data: bytes) -> bytes:
    place = data.rindex(b"IDAT") + 20
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def image_file(written: str, mode: str = "RGB", **how: object) -> bytes:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    return png(noise.convert(mode), written, **how)


@pytest.mark.parametrize("keep", [0.5, 0.98])
@pytest.mark.parametrize("written", ["jpeg", "progressive", "png", "webp", "bmp", "ppm", "tiff"])
def test_an_image_that_was_cut_off_is_a_damaged_sample(tmp_path, written, keep):
    data = image_file("JPEG", progressive=True) if written == "progressive" else image_file(written.upper())
    check_damaged(tmp_path, "jpg" if written == "progressive" else written, data, data[: int(keep * len(data))])


@pytest.mark.parametrize("suffix, harm", [("jpg", half_ended), ("jpg", zeroed), ("png", zeroed), ("png", wounded)])
@pytest.mark.parametrize(
    "how", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"mode": "CMYK"}, {"mode": "L"}]
)
def test_an_image_of_which_a_part_is_lost_is_a_damaged_sample(tmp_path, suffix, harm, how):
    data = image_file("JPEG", **how) if suffix == "jpg" else image_file("PNG")
    check_damaged(tmp_path, suffix, data, harm(data))


def with_a_bad_table(data: bytes) -> bytes:
    """A JPEG whose first Huffman table says 200 codes of one bit."""
    place = data.index(b"\xff\xc4") + 5
    return data[:place] + b"\xc8" + data[place + 1 :]


def without_codes(data: bytes) -> bytes:
    """A progressive JPEG with one code of its second Huffman table changed: decoders warn, and return other pixels."""
    place = data.index(b"\xff\xc4", data.index(b"\xff\xc4") + 2) + 5
    counts = bytearray(data[place : place + 16])
    counts[next(at for at in range(15) if counts[at])] -= 1
    counts[15] += 1
    return data[:place] + bytes(counts) + data[place + 16 :]


@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"mode": "CMYK"}, {"mode": "L"}])
def test_a_jpeg_with_a_damaged_huffman_table_is_a_damaged_sample(tmp_path, how):
    data = image_file("JPEG", **how)
    check_damaged(tmp_path, "jpg", data, with_a_bad_table(data))


def test_a_jpeg_with_codes_that_do_not_exist_is_a_damaged_sample(tmp_path):
    data = image_file("JPEG", progressive=True)
    assert Image.open(io.BytesIO(without_codes(data))).convert("RGB").size == (64, 64)  # Pillow says nothing
    check_damaged(tmp_path, "jpg", data, without_codes(data))


@pytest.mark.parametrize("more", [b"\0\0\0", b"\0" * 100])
def test_bytes_left_over_before_the_end_marker_are_no_damage(tmp_path, more):
    data = image_file("JPEG")
    (found,) = images_in(tmp_path, {"0.jpg": data[:-2] + more + data[-2:]}, exact=True)
    assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(data))))


def of_four_inks() -> Image.Image:
    return Image.frombytes("CMYK", (12, 10), np.random.default_rng(0).integers(0, 256, 480, np.uint8).tobytes())


def test_cmyk_keeps_its_values_if_the_file_has_them(tmp_path):
    (found,) = images_in(tmp_path, {"0.tiff": png(of_four_inks(), "TIFF")})
    assert np.array_equal(found, np.asarray(of_four_inks()))
    loader = Loader(tmp_path / "shards", 1, image_mode="RGB", transform=dict, collate_fn=list, threads=0)
    assert np.array_equal(next(iter(loader))[0]["image"], np.asarray(of_four_inks().convert("RGB")))


def test_cmyk_beside_rgb_keeps_its_values(tmp_path):
    inks, photo = images_in(tmp_path, {"0.tiff": png(of_four_inks(), "TIFF"), "1.png": png(Image.new("RGB", (12, 10)))})
    assert np.array_equal(inks, np.asarray(of_four_inks())) and photo.shape == (10, 12, 3)


def test_cmyk_with_16_bits_is_refused_as_pillow_reads_8():
    pixel = bytes(range(8))
    tags = [(256, 1), (257, 1), (258, 16), (259, 1), (262, 5), (273, 200), (277, 4), (278, 1), (279, len(pixel))]
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags if tag != 258)
    depths = struct.pack("<HHII", 258, 3, 4, 208)
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries[:24] + depths + entries[24:] + bytes(4)
    data = head.ljust(200, b"\0") + pixel + struct.pack("<4H", 16, 16, 16, 16)
    assert Image.open(io.BytesIO(data)).mode == "CMYK"
    with pytest.raises(NotAnImage, match="CMYK with 16 bits"):
        image_header(data)


def test_a_jpeg_of_cmyk_is_decoded_to_rgb(tmp_path):
    inks, photo = images_in(tmp_path, {"0.jpg": png(of_four_inks(), "JPEG"), "1.jpg": image_file("JPEG")})
    assert inks.shape == (10, 12, 3) and photo.shape == (64, 64, 3)
    assert ShardedDataset(tmp_path / "shards").contents.columns[0].mode == "RGB"


def check_damaged(folder, suffix: str, sound: bytes, harmed: bytes) -> None:
    (folder / "in").mkdir()
    (folder / "in" / f"0.{suffix}").write_bytes(sound)
    (folder / "in" / f"1.{suffix}").write_bytes(harmed)
    source = image_folder(folder / "in")
    with pytest.raises(BadSample, match=f"1.{suffix}: image is not an image that can be used"):
        convert(source, folder / "out", Options(verbatim=True), 1, lambda done, whole: None)
    made = convert(source, folder / "out", Options(on_error="skip", verbatim=True), 1, lambda done, whole: None)
    assert (made.contents.samples, len(made.skipped)) == (1, 1)


def test_bytes_behind_an_image_are_no_damage(tmp_path):
    (tmp_path / "in").mkdir()
    for suffix in ("jpg", "png", "webp"):
        data = image_file({"jpg": "JPEG"}.get(suffix, suffix.upper()))
        (tmp_path / "in" / f"0.{suffix}").write_bytes(data + b"more")
    made = convert(image_folder(tmp_path / "in"), tmp_path / "out", Options(), 1, lambda done, whole: None)
    assert made.contents.samples == 3


@pytest.mark.parametrize("changed", [False, True])
def test_an_image_with_another_palette_is_not_its_file(tmp_path, monkeypatch, changed):
    palette().save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    image.load()
    if changed:
        image.putpalette([255 - value for value in image.getpalette()])
    module = types.ModuleType("images_of_palettes")
    module.samples = [{"image": image}]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    source = DatasetSource("images_of_palettes:samples", images="png")
    found = Image.open(io.BytesIO(source.sample(0)["image"].data))
    assert np.array_equal(np.asarray(found.convert("RGB")), np.asarray(image.convert("RGB")))
