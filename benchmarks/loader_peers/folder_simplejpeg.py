"""torch's DataLoader over a folder, with the fastest decoder there is."""

from pathlib import Path

import torch
from _folder import batches_of, prepare
from _peer import crop, main


def sample(path):
    return torch.from_numpy(crop(Path(path).read_bytes()))


if __name__ == "__main__":
    main(prepare, batches_of(sample))
