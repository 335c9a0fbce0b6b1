"""What every program of the comparison shares: it is asked to prepare a data set, or to read one and say what it took.

    PYTHON program.py import                             # does it?
    PYTHON program.py prepare FOLDER_OF_PICTURES DEST
    PYTHON program.py read DEST WORKERS

Read are batches of 64 pictures of 224 x 224, cropped at random. CPU seconds are of the process and all below it, from
a moment when everything runs until another such moment: starting up is not counted, nor the first touch of memory that
is used again from then on, and nothing has ended meanwhile.
The clock on the wall is the caller's, who stops and continues programs in turn. Nothing of Paceline is imported here,
so that it runs in any environment.
"""

import math
import os
import random
import sys
import time
from pathlib import Path

BATCH, SIZE = 64, 224
WARM, MEASURED = 4096, 7680  # samples: one epoch of 12,000 has them all


def main(prepare, batches):
    verb, *rest = sys.argv[1:]
    if verb == "import":
        return
    if verb == "prepare":
        prepare(Path(rest[0]), Path(rest[1]))
        return
    taken = iter(batches(Path(rest[0]), int(rest[1])))
    consume(taken, WARM)
    print(f"samples 0 cpu {cpu_s()}", flush=True)
    consume(taken, MEASURED)
    print(f"samples {MEASURED} cpu {cpu_s()}", flush=True)
    os._exit(0)  # workers in the middle of their work are of no interest any more


def consume(taken, samples):
    seen = 0
    while seen < samples:
        images, labels = next(taken)
        assert len(images) == len(labels) and SIZE in tuple(images.shape[1:]), images.shape
        seen += len(labels)
    return seen


def cpu_s():
    """CPU seconds of this process and of all below it that are alive."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    below, more = set(), {os.getpid()}
    while more:
        below |= more
        more = {pid for pid, (parent, _) in parents.items() if parent in below} - below
    return time.process_time() + sum(parents[pid][1] for pid in below if pid != os.getpid() and pid in parents)


def pictures(folder):
    """The files of a folder of classes, mixed once, with their labels."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    found = [(path, number) for number, name in enumerate(classes) for path in sorted((folder / name).iterdir())]
    random.Random(0).shuffle(found)
    return found


def box(height, width):
    """A part of a picture as RandomResizedCrop takes it: top, left, height, width."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        shape = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def crop(data, slot=None):
    """Decode a JPEG with the fastest decoder there is, and crop it; the same settings for every peer."""
    import cv2
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(data, "RGB", fastdct=True, fastupsample=True)
    top, left, height, width = box(*pixels.shape[:2])
    part = pixels[top : top + height, left : left + width]
    made = cv2.resize(part, (SIZE, SIZE), dst=slot, interpolation=cv2.INTER_LINEAR)
    if random.random() < 0.5:
        cv2.flip(made, 1, dst=made)
    return made
