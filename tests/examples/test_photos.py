"""Do the example's photographs come out the same every time, and does it train, watched and unwatched?"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from tests.cli.conftest import call

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAIN = EXAMPLES / "photos" / "train.py"


def load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_photos", EXAMPLES / "photos" / "make_photos.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def few_photos(folder: Path, number: int) -> Path:
    maker = load_maker()
    maker.PER_SCENE = number
    return maker.make_photos(folder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return few_photos(tmp_path_factory.mktemp("few") / "photos", 40)


def digest(folder: Path) -> str:
    files = sorted(folder.rglob("*.jpg"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_the_same_photographs_every_time(tmp_path: Path) -> None:
    first, second = (few_photos(tmp_path / name, 3) for name in ("one", "two"))
    assert digest(first) == digest(second)


def test_photographs_are_jpegs_of_ten_scenes(photos: Path) -> None:
    scenes = [path for path in photos.iterdir() if path.is_dir()]
    assert len(scenes) == 10
    for scene in scenes:
        assert len(list(scene.glob("*.jpg"))) == 40
    with Image.open(next(photos.rglob("*.jpg"))) as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (256, 256), "RGB")


def test_photographs_that_are_there_are_kept(photos: Path) -> None:
    before = digest(photos)
    assert few_photos(photos, 1) == photos
    assert digest(photos) == before


def test_a_failure_leaves_no_half_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = load_maker()

    def fail(folder: Path) -> None:
        (folder / "astronaut").mkdir()
        raise OSError("disk full")

    monkeypatch.setattr(maker, "write_photos", fail)
    with pytest.raises(OSError, match="disk full"):
        maker.make_photos(tmp_path / "photos")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", sorted((EXAMPLES / "photos").glob("*.py")), ids=lambda file: file.name)
def test_examples_are_ordinary_programs(file: Path) -> None:
    """What is watched must not need us."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if name.split(".")[0] == "paceline"]


def test_it_trains(photos: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, TRAIN, "--data", photos, "--epochs", "1"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "epoch 1: loss" in done.stdout


def test_watched_it_waits_for_data(photos: Path, tmp_path: Path) -> None:
    """With one thread: of two that share the cores with other tests, each waits for the other in most operators."""
    done = call("run", "--json", "run.json", str(TRAIN), "--data", str(photos), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch") == 2
    found = json.loads((tmp_path / "run.json").read_text())
    assert "DATA001" in [finding["code"] for finding in found["findings"]]
    assert found["phases"]["data_wait"]["share"] > 0.25
    assert found["loader"]["workers"] == 0
    assert "verdict: " in done.stderr
    assert "next: paceline " in done.stderr


def test_what_the_demo_finds_takes_effect_in_a_whole_run(photos: Path, tmp_path: Path) -> None:
    """No setting is switched off while it trains: its evaluation loads photographs by paths, in the process itself."""
    (tmp_path / "recipe.toml").write_text("[loader]\nnum_workers = 2\npersistent_workers = true\n")
    done = call("run", "--recipe", "recipe.toml", str(TRAIN), "--data", str(photos), cwd=tmp_path, OMP_NUM_THREADS="1")
    assert (done.returncode, done.stdout.count("epoch")) == (0, 2), done.stderr
    assert "loader.num_workers" not in done.stderr.partition("verdict")[0]
    assert "switched off" not in done.stderr
