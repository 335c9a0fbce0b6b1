"""Cut a small set of real photographs for train.py: 3,000 JPEGs of ten scenes, once.

The pictures are pieces of the photographs that scikit-image and scikit-learn bring along, so nothing is downloaded.
The same pieces come out every time.

    python examples/photos/make_photos.py           # prints the folder; the second time there is nothing to do
"""

import importlib.util
import os
import random
import shutil
import tempfile
from pathlib import Path

from PIL import Image

SCENES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
}
PER_SCENE = 300
SIZE = 256  # pixels; a piece is a quarter to all of the scene's shorter side, scaled to this


def open_scene(package, path):
    """Open a photograph inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise SystemExit(
            f"the photographs are those of {package}, which is missing: pip install scikit-image scikit-learn"
        )
    return Image.open(Path(spec.origin).parent / path).convert("RGB")


def cut(scene, draw):
    """Cut a square piece of random size and place."""
    side = draw.randint(min(scene.size) // 4, min(scene.size))
    left = draw.randint(0, scene.width - side)
    top = draw.randint(0, scene.height - side)
    return scene.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))


def write_photos(folder):
    draw = random.Random(20261121)
    for name, (package, path) in SCENES.items():
        scene = open_scene(package, path)
        (folder / name).mkdir()
        for number in range(PER_SCENE):
            cut(scene, draw).save(folder / name / f"{number:04d}.jpg", quality=90)


def usual_folder():
    """Beside this file, or in the user's cache where the checkout cannot be written."""
    beside = Path(__file__).resolve().parent
    if os.access(beside, os.W_OK):
        return beside / ".cache" / "photos"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline-example" / "photos"


def make_photos(folder=None):
    """Return the folder of photographs, made when it is not there: one folder per scene."""
    folder = Path(folder or usual_folder())
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix="photos-", dir=folder.parent))  # so that half a set is never taken for one
    try:
        write_photos(making)
        making.chmod(0o755)
        making.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process was not quicker: a real failure
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return folder


if __name__ == "__main__":
    print(make_photos())
