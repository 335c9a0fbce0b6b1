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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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
    """What `make setup` installs by name, in the spelling of the package index."""
    extras = PROJECT["optional-dependencies"]
    lines = [
        *PROJECT["dependencies"],
        *(line for name in ("dev", "demo", "data", "formats", "remote", "text") for line in extras[name]),
    ]
    return {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines}


def test_every_requirement_is_pinned():
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    assert requirement_names() - pinned == set()


def test_torch_is_no_dependency():
    assert not any(line.startswith("torch") for line in PROJECT["dependencies"])
