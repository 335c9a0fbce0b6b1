"""Paceline: shards, threads, crops that decode only their rows."""

import subprocess
import sys

from _peer import BATCH, SIZE, main


def prepare(source, dest):
    subprocess.run([sys.executable, "-m", "paceline", "data", "convert", str(source), str(dest)], check=True)


def batches(dest, workers):
    from paceline.data.loader.loader import Loader
    from paceline.data.reading.crops import RandomResizedCrop

    return Loader(dest, BATCH, True, transform=RandomResizedCrop(SIZE, antialias=False), threads=workers)


if __name__ == "__main__":
    main(prepare, batches)
