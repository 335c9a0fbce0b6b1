"""Make the pictures of README and documentation from one real session in a terminal.

    python tools/pictures.py              # record the session, draw both pictures
    python tools/pictures.py --redraw     # draw the recording again from docs/pictures/session.cast

The session watches, tunes and compares the example in a scratch copy. It is kept as ``session.cast`` (asciicast v2),
which ``terminal.svg`` is drawn from. ``report.png`` is the report of the first run in headless Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _example import ROOT, environment, hide_paths, scratch_copy, warn_if_busy
from _recording import CommandFailed, Recording, loads, record
from _svg import render

sys.path.insert(0, str(ROOT / "benchmarks"))
from _machine import about  # noqa: E402

EXAMPLE = "examples/photos"
PICTURES = ROOT / "docs" / "pictures"
CAST, TERMINAL, REPORT = PICTURES / "session.cast", PICTURES / "terminal.svg", PICTURES / "report.png"
SESSION = (
    "paceline run train.py",
    "paceline tune --budget 90s train.py",
    "paceline run --recipe recipe.toml train.py",
    "paceline compare last~1 last",
)
SIZE = (100, 30)  # columns and rows of the terminal
PAGE = (1100, 900)  # pixels of the report that are shown
MOST_BYTES = 300_000


class PictureError(Exception):
    """A picture cannot be made on this machine, or became too large."""


def make_pictures() -> None:
    """Record the session and draw both pictures.

    Raises:
        CommandFailed: A command of the session failed.
        PictureError: There is no Chromium, or a picture is too large.
    """
    chromium = find_chromium()
    warn_if_busy()
    with scratch_copy(EXAMPLE) as copy:
        env = environment(copy, TERM="xterm-256color", PYTHONUNBUFFERED="1")
        subprocess.run([sys.executable, "make_photos.py"], cwd=copy, env=env, check=True, stdout=subprocess.DEVNULL)
        events = [(at, kind, hide_paths(text, copy, EXAMPLE)) for at, kind, text in record(SESSION, copy, env, SIZE)]
        screenshot = photograph(first_report(copy), chromium)
    known = about([])
    keep(CAST, Recording(*SIZE, known["device"], known["date"], tuple(events)).dumps().encode())
    keep(REPORT, smaller(screenshot))
    redraw()


def redraw() -> None:
    """Draw the terminal's picture from the recording."""
    keep(TERMINAL, render(loads(CAST.read_text(encoding="utf-8"))).encode())


def keep(path: Path, data: bytes) -> None:
    """Write a file of the documentation, if it is small enough.

    Raises:
        PictureError: It is larger than ``MOST_BYTES``.
    """
    if len(data) > MOST_BYTES:
        raise PictureError(f"{path.name} has {len(data):,} bytes; at most {MOST_BYTES:,} are allowed")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    print(f"pictures: {path.relative_to(ROOT)}, {len(data) / 1000:.0f} kB", file=sys.stderr)


def first_report(copy: Path) -> Path:
    """Return the report of the first run of the session."""
    return min((copy / ".paceline" / "runs").glob("*/report.html"))


def find_chromium() -> str:
    """Return the path of Chromium.

    Raises:
        PictureError: There is none.
    """
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise PictureError("the picture of the report needs Chromium; on Debian: apt-get install chromium")
    return found


def photograph(page: Path, chromium: str, size: tuple[int, int] = PAGE) -> bytes:
    """Return a PNG of the top of a page in headless Chromium."""
    with tempfile.TemporaryDirectory(prefix="paceline-picture-") as folder:
        png = Path(folder) / "page.png"
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        where = [f"--window-size={size[0]},{size[1]}", f"--screenshot={png}", page.as_uri()]
        subprocess.run([chromium, *flags, *where], check=True, capture_output=True, timeout=120)
        return png.read_bytes()


def smaller(png: bytes) -> bytes:
    """Return a PNG with a palette of 256 colours, which flat pictures are not seen to lose by."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pictures, or draw the recording again."""
    parser = argparse.ArgumentParser(description="Make the pictures of README and documentation from a real session.")
    parser.add_argument("--redraw", action="store_true", help="draw the kept recording again, run nothing")
    if parser.parse_args(arguments).redraw:
        redraw()
    else:
        make_pictures()


if __name__ == "__main__":
    try:
        main()
    except (CommandFailed, PictureError) as error:
        sys.exit(f"pictures: {error}")
