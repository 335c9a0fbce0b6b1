"""What most people have: torch's DataLoader over a folder, PIL."""

import random

import numpy as np
import torch
from _folder import batches_of, prepare
from _peer import SIZE, box, main
from PIL import Image


def sample(path):
    image = Image.open(path).convert("RGB")
    top, left, height, width = box(image.height, image.width)
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


if __name__ == "__main__":
    main(prepare, batches_of(sample))
