"""ResNet-50 (He et al., CVPR 2016; stride in the 3 x 3 convolution), written out: torchvision is not needed."""

from __future__ import annotations

import torch
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *normed(before, width, 1, 1), nn.ReLU(True), *normed(width, width, 3, stride), nn.ReLU(True),
            *normed(width, after, 1, 1),
        )  # fmt: skip
        same = before == after and stride == 1
        self.side = nn.Identity() if same else nn.Sequential(*normed(before, after, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.side(x))


def normed(before: int, after: int, size: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)]


def resnet50(classes: int = 1000) -> nn.Module:
    layers: list[nn.Module] = [*normed(3, 64, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(before, width, stride if number == 0 else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
