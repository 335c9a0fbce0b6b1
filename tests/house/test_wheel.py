"""Does an installed Paceline have everything that a checkout has?"""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import paceline

ROOT = Path(__file__).parents[2]
NOT_FOR_USERS = {"all", "dev", "docs"}
# The names that packages are imported by, where they are not those of the package index.
IMPORTED_AS = {"opencv-python-headless": "cv2", "google-crc32c": "google_crc32c", "pillow": "PIL",
               "scikit-image": "skimage", "scikit-learn": "sklearn"}  # fmt: skip
# aiohttp and s3fs are back ends of fsspec, which imports them by the protocol of a URL.
LOADED_BY_OTHERS = {"aiohttp", "s3fs"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")))))


def package_files() -> set[str]:
    """All files of the package but caches, as paths inside the wheel."""
    files = (path for path in (ROOT / "src" / "paceline").rglob("*") if path.is_file())
    return {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == package_files()


def test_the_wheel_is_small_and_pure(wheel):
    assert wheel.name == f"paceline-{paceline.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 2_000_000


def requirement_names() -> set[str]:
    """What the package and its extras need by name, in the spelling of the package index."""
    lines = [*PROJECT["dependencies"], *(line for name, extra in EXTRAS.items() if name != "all" for line in extra)]
    return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}


def test_every_requirement_is_pinned():
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    assert requirement_names() - pinned == set()


def test_torch_is_no_dependency():
    assert not any(line.startswith("torch") for line in PROJECT["dependencies"])


def test_all_holds_every_extra_for_users() -> None:
    assert EXTRAS["all"] == [f"paceline[{','.join(sorted(set(EXTRAS) - NOT_FOR_USERS))}]"]


def imported_somewhere() -> str:
    """The source of the package and of its examples."""
    files = [path for folder in ("src", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_every_extra_is_used() -> None:
    """An extra whose packages nothing imports promises a feature that is not there."""
    source = imported_somewhere()
    names = {re.match(r"[\w.-]+", line)[0] for name in set(EXTRAS) - NOT_FOR_USERS for line in EXTRAS[name]}
    modules = {IMPORTED_AS.get(name, name) for name in names - LOADED_BY_OTHERS}
    assert [
        name for name in sorted(modules) if not re.search(rf"import {name}\b|from {name}\b|\"{name}\"", source)
    ] == []


def test_extras_that_messages_and_pages_name_exist() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = imported_somewhere() + "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = {extra for found in re.findall(r"paceline\[([\w,]+)\]|'?\.\[([\w,]+)\]'", text) for extra in found}
    assert {name for extra in named for name in extra.split(",") if name} - set(EXTRAS) == set()
