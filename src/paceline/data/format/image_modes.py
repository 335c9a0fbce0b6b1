"""The mode of an image: its channels and their depth, named as in PIL, and read from the header of the file.

PIL reduces images with 16 bits per channel to 8 bits. The modes `RGB;16`, `RGBA;16` and `LA;16` keep the 16 bits.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from isal import isal_zlib

from paceline.core.errors import EnvironmentFault
from paceline.data.format.jpeg import END, NotAJpeg, header_of

EACH = "each"  # the mode of a column without a mode that holds all its images: each image keeps its own
DEEP = ("RGB;16", "RGBA;16", "LA;16")
_PNG = b"\x89PNG\r\n\x1a\n"
_OF_PNG = {0: "L", 2: "RGB", 3: "P", 4: "LA", 6: "RGBA"}  # by colour type (PNG specification, 11.2.1)
_ENDS_EARLY = "remature end"  # in the warnings of libjpeg
_LOST = ("bad Huffman code", "bad arithmetic code", "instead of RST")  # in warnings about wrong pixels
_LEFT_OVER = "extraneous"  # in the warning about unused bytes, which some cameras write
_BITS_PER_SAMPLE = 258  # a tag of TIFF
# The mode that holds all images of a column without loss: the first one that covers the modes of the column.
_COVERING = (
    ("L", {"1", "L"}),
    ("RGB", {"1", "L", "P", "RGB"}),
    ("LA", {"1", "L", "LA"}),
    ("RGBA", {"1", "L", "LA", "P", "PA", "RGB", "RGBA"}),
    ("I", {"I;16", "I;16B", "I"}),
)
_CROPPED = ("", "1", "L", "RGB", "LA", "RGBA")  # modes of columns that a crop can convert to 8-bit RGB


class NotAnImage(ValueError):
    """The bytes are no image that can be decoded, or the image cannot be one array."""


class ImageHeader(NamedTuple):
    """The mode and size from the header of an image file."""

    mode: str
    width: int  # pixels
    height: int


def image_header(data: bytes | memoryview) -> ImageHeader:
    """Read the mode and the size of an image without decoding its pixels.

    Raises:
        NotAnImage: The bytes are no image, or an image with several frames or pages.
    """
    if bytes(data[:2]) == b"\xff\xd8":
        try:
            header = header_of(data)
        except NotAJpeg as error:
            raise NotAnImage(f"it is not a valid JPEG file: {error}") from error
        mode = "L" if header.components == 1 else "RGB"  # CMYK is decoded to RGB; JPEG keeps no exact values anyway
        return ImageHeader(mode, header.width, header.height)
    return _header_of_png(bytes(data[:4096])) if bytes(data[:8]) == _PNG else _header_by_pil(data)


def check_complete(data: bytes) -> None:
    """Check that an image file is not truncated, and that the checksums in it match.

    Raises:
        NotAnImage: The file is truncated, or a checksum does not match.
    """
    if data[:2] == b"\xff\xd8":
        _check_scans(data)
    elif data[:8] == _PNG:
        _check_chunks(data)
    elif data[:4] == b"RIFF":
        if len(data) < 8 + int.from_bytes(data[4:8], "little"):
            raise NotAnImage("it is cut off: its header gives a larger size")
    else:
        _check_by_pil(data)


def _check_by_pil(data: bytes) -> None:
    """Decode an image.

    Raises:
        NotAnImage: The image cannot be decoded.
    """
    try:
        with pil().open(io.BytesIO(data)) as image:
            image.load()
    except EnvironmentFault:
        raise
    except Exception as error:
        raise NotAnImage(f"it is cut off or damaged: {error}") from error


def _check_scans(data: bytes) -> None:
    """Check that a JPEG has an end marker and, if simplejpeg is installed, that all pixels before it can be decoded.

    Raises:
        NotAnImage: The file is truncated or damaged.
    """
    header = header_of(data)
    if data.find(END, header.body_at) < 0:
        raise NotAnImage("it is cut off: its JPEG data have no end marker")
    try:
        import simplejpeg
    except ImportError:
        return
    try:  # decoding to 1/8 of the size is the fastest
        simplejpeg.decode_jpeg(
            data, "CMYK" if header.components == 4 else "GRAY", min_height=1, min_width=1, min_factor=8
        )
    except (ValueError, KeyError) as error:
        if _ENDS_EARLY in str(error):
            raise NotAnImage("it is cut off: its JPEG data end before its last pixels") from error
        if any(one in str(error) for one in _LOST):
            raise NotAnImage(f"it is damaged: {error}") from error
        if _LEFT_OVER not in str(error):  # damage, or a coding that simplejpeg does not support
            _check_by_pil(data)


def _check_chunks(data: bytes) -> None:
    """Check that a PNG has all chunks (PNG specification, 5.3), and the checksums of chunks that determine pixels.

    Raises:
        NotAnImage: A chunk is missing or damaged.
    """
    at, kind = len(_PNG), b""
    while kind != b"IEND":
        if at + 8 > len(data):
            raise NotAnImage("it is cut off: its PNG data have no end")
        length, kind = struct.unpack_from(">I4s", data, at)
        checked, at = data[at + 4 : at + 8 + length], at + 12 + length
        if at > len(data):
            raise NotAnImage("it is cut off: its PNG data have no end")
        is_needed = kind == b"tRNS" or kind[:1].isupper()
        if is_needed and isal_zlib.crc32(checked) != int.from_bytes(data[at - 4 : at], "big"):
            raise NotAnImage(f"it is damaged: the checksum of its PNG chunk {kind.decode('latin-1')} does not match")


def column_mode(modes: Iterable[str]) -> str:
    """Return the mode to which all images of a column can be decoded without loss, or `EACH` if there is none.

    Args:
        modes: The modes of its images. A single mode is returned unchanged.
    """
    found = set(modes) - {""}
    if len(found) <= 1:
        return found.pop() if found else ""
    return next((mode for mode, covered in _COVERING if found <= covered), EACH)


def palette_of(data: bytes) -> str:
    """Return the colours of the palette of an image as hexadecimal RGB; empty if it has no palette or is no image."""
    try:
        with pil().open(io.BytesIO(data)) as image:
            return bytes(image.getpalette("RGB") or ()).hex() if image.mode == "P" else ""
    except (OSError, ValueError, SyntaxError):
        return ""


def joint_palette(one: str, other: str) -> str:
    """Return the palette of two groups of images, or `EACH` if an id stands for different colours in them.

    An encoder may omit unused colours at the end of a palette. So two palettes agree if the longer one begins with the
    shorter one.

    Args:
        one: The palette of a group, such as one image; empty if it is not known.
        other: The palette of the other group.
    """
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    return longer if EACH not in (one, other) and longer.startswith(shorter) else EACH


def is_cropped(mode: str) -> bool:
    """Return whether a crop can convert images of a mode to 8-bit RGB without loss of palette ids or depth."""
    return mode in _CROPPED


def pil() -> Any:
    """Import PIL, which decodes all images except JPEG and 8-bit RGB.

    Raises:
        EnvironmentFault: PIL is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise EnvironmentFault("images that are not JPEG files need Pillow: pip install 'paceline[data]'") from error
    return Image


def _header_of_png(head: bytes) -> ImageHeader:
    if head[12:16] != b"IHDR" or len(head) < 26:
        raise NotAnImage("its PNG header is truncated")
    width, height, depth, colour = struct.unpack(">IIBB", head[16:26])
    mode = _OF_PNG.get(colour)
    if mode is None or not width or not height:
        raise NotAnImage(f"its PNG header says {width} x {height} pixels of colour type {colour}")
    if b"acTL" in head[:128]:
        raise NotAnImage("it is an animated PNG; only images of one frame are supported, so extract the frames first")
    if depth == 16 and mode != "P":
        return ImageHeader("I;16" if mode == "L" else f"{mode};16", width, height)
    return ImageHeader("1" if mode == "L" and depth == 1 else mode, width, height)


def _header_by_pil(data: bytes | memoryview) -> ImageHeader:
    try:
        with pil().open(io.BytesIO(data)) as image:
            frames, mode = getattr(image, "n_frames", 1), str(image.mode)
            width, height = image.size
            deep = image.format == "TIFF" and max(image.tag_v2.get(_BITS_PER_SAMPLE) or (8,)) > 8
    except EnvironmentFault:
        raise
    except Exception as error:
        raise NotAnImage(f"no image decoder can read it: it begins with {bytes(data[:12])!r}") from error
    if frames > 1:
        raise NotAnImage(
            f"it holds {frames} frames or pages; only images of one frame are supported, so extract the frames first"
        )
    if deep and mode == "CMYK":
        raise NotAnImage("it has CMYK with 16 bits per channel, of which 8 would be lost; convert it, or give an array")
    deep = deep or (bytes(data[:2]) == b"P6" and _largest_of_ppm(bytes(data[:256])) > 255)
    return ImageHeader(f"{mode};16" if deep and f"{mode};16" in DEEP else mode, width, height)


def _largest_of_ppm(head: bytes) -> int:
    """Return the largest sample value of a binary PPM image: the fourth word of its header, without comment lines."""
    words = b" ".join(line.partition(b"#")[0] for line in head.split(b"\n")).split()
    return int(words[3]) if len(words) > 3 and words[3].isdigit() else 255
