"""The cost per sample of published convolutional networks, counted from their blocks.

ResNet, ResNeXt and their squeeze-and-excitation variants (arXiv:1512.03385, 1611.05431, 1709.01507), EfficientNet
(arXiv:1905.11946), and SSD300 with a ResNet-50 backbone. A multiply-add counts as two FLOPs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from paceline.core.errors import UsageError
from paceline.plan.models.architecture import ConvNet


@dataclass(frozen=True, kw_only=True)
class _Conv:
    inputs: int
    outputs: int
    kernel: int
    side: int  # side of its output in pixels
    groups: int = 1
    maps: float = 2.0  # number of output-sized maps kept for backward: for the normalisation and for the next layer

    @property
    def params(self) -> int:
        return self.inputs * self.outputs * self.kernel**2 // self.groups

    @property
    def flops(self) -> float:
        return 2.0 * self.params * self.side**2

    @property
    def written(self) -> float:
        return float(self.outputs * self.side**2)


_SWISH_MAPS = 3.0  # swish, unlike ReLU, also keeps its input
# Blocks per stage of ResNet, and (expansion, channels, blocks, stride, kernel) per stage of EfficientNet-B0.
_DEPTHS = {"50": (3, 4, 6, 3), "101": (3, 4, 23, 3), "152": (3, 8, 36, 3)}
_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
_SCALES = {  # of EfficientNet: width, depth, pixels on a side
    "0": (1.0, 1.0, 224),
    "1": (1.0, 1.1, 240),
    "2": (1.1, 1.2, 260),
    "3": (1.2, 1.4, 300),
    "4": (1.4, 1.8, 380),
    "5": (1.6, 2.2, 456),
    "6": (1.8, 2.6, 528),
    "7": (2.0, 3.1, 600),
}


def convnet(name: str) -> ConvNet:
    """Return the published network of this name, such as ``ResNet-50 v1.5`` or ``EfficientNet-B4``.

    Raises:
        UsageError: No network of this name is known.
    """
    plain = name.lower().replace(" ", "-")
    for pattern, build in _BUILDERS:
        found = re.match(pattern, plain)
        if found is not None:
            return _counted(name, list(build(found)))
    raise UsageError(
        f"unknown convolutional network {name!r}; the known networks are ResNet, ResNeXt, SE-ResNeXt, EfficientNet, "
        f"SSD300"
    )


def _counted(name: str, convs: list[_Conv]) -> ConvNet:
    narrow = sum(conv.flops for conv in convs if conv.groups > 1)
    return ConvNet(
        name=name,
        params=sum(conv.params for conv in convs),
        flops=sum(conv.flops for conv in convs),
        narrow_flops=narrow,
        outputs=sum(conv.written for conv in convs),
        layers=len(convs),
        kept=sum(conv.maps * conv.written for conv in convs),
        gated=name.lower().startswith("efficientnet"),
    )


def _resnet(found: re.Match[str]) -> Iterator[_Conv]:
    wide, grouped = found["depth"], found["groups"]
    groups, width = (int(each) for each in grouped.split("x")) if grouped else (1, 64)
    side, inputs = 56, 64
    yield _Conv(inputs=3, outputs=64, kernel=7, side=112)
    for stage, blocks in enumerate(_DEPTHS[wide]):
        side = 56 // 2**stage
        middle = groups * width * 2**stage if grouped else 64 * 2**stage
        for block in range(blocks):
            yield from _bottleneck(
                inputs, middle, 256 * 2**stage, side * (2 if stage and not block else 1), side, groups
            )
            if found["squeeze"]:
                yield from _squeeze(256 * 2**stage, side, 16)
            inputs = 256 * 2**stage
    yield _Conv(inputs=inputs, outputs=1000, kernel=1, side=1)


def _bottleneck(inputs: int, middle: int, outputs: int, before: int, side: int, groups: int) -> Iterator[_Conv]:
    yield _Conv(inputs=inputs, outputs=middle, kernel=1, side=before)
    yield _Conv(inputs=middle, outputs=middle, kernel=3, side=side, groups=groups)
    yield _Conv(inputs=middle, outputs=outputs, kernel=1, side=side)
    if inputs != outputs:
        yield _Conv(inputs=inputs, outputs=outputs, kernel=1, side=side, maps=1.0)  # added to the other branch


def _squeeze(channels: int, side: int, ratio: int) -> Iterator[_Conv]:
    """Yield the two small layers of squeeze-and-excitation, and the multiplication of the whole feature map."""
    yield _Conv(inputs=channels, outputs=channels // ratio, kernel=1, side=1)
    yield _Conv(inputs=channels // ratio, outputs=channels, kernel=1, side=1)
    yield _Conv(inputs=channels, outputs=channels, kernel=1, side=side, groups=channels, maps=1.0)


def _efficientnet(found: re.Match[str]) -> Iterator[_Conv]:
    width, depth, pixels = _SCALES[found["scale"]]
    side = math.ceil(pixels / 2)
    inputs = _rounded(32 * width)
    yield _Conv(inputs=3, outputs=inputs, kernel=3, side=side, maps=_SWISH_MAPS)
    for expansion, channels, blocks, stride, kernel in _STAGES:
        outputs = _rounded(channels * width)
        for block in range(math.ceil(blocks * depth)):
            before, side = side, math.ceil(side / stride) if block == 0 else side
            middle = inputs * expansion
            if expansion > 1:
                yield _Conv(inputs=inputs, outputs=middle, kernel=1, side=before, maps=_SWISH_MAPS)
            yield _Conv(inputs=middle, outputs=middle, kernel=kernel, side=side, groups=middle, maps=_SWISH_MAPS)
            yield from _squeeze(middle, side, 4 * expansion)
            yield _Conv(inputs=middle, outputs=outputs, kernel=1, side=side)
            inputs = outputs
    yield _Conv(inputs=inputs, outputs=_rounded(1280 * width), kernel=1, side=side)
    yield _Conv(inputs=_rounded(1280 * width), outputs=1000, kernel=1, side=1)


def _rounded(channels: float) -> int:
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


def _ssd300(found: re.Match[str]) -> Iterator[_Conv]:
    """Yield the layers of SSD300: ResNet-50 up to its third stage at 38 x 38, six extra scales, and detection heads."""
    del found
    yield _Conv(inputs=3, outputs=64, kernel=7, side=150)
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6)):
        side = 75 if stage == 0 else 38
        for block in range(blocks):
            yield from _bottleneck(
                inputs, 64 * 2**stage, 256 * 2**stage, 75 if stage == 1 and not block else side, side, 1
            )
            inputs = 256 * 2**stage
    scales = ((1024, 38, 4), (512, 19, 6), (512, 10, 6), (256, 5, 6), (256, 3, 4), (256, 1, 4))
    for (wide, before, _boxes), (channels, side, _same) in pairwise(scales):
        yield _Conv(inputs=wide, outputs=256, kernel=1, side=before)
        yield _Conv(inputs=256, outputs=channels, kernel=3, side=side)
    for channels, side, boxes in scales:
        yield _Conv(inputs=channels, outputs=boxes * 85, kernel=3, side=side)


_BUILDERS: tuple[tuple[str, Callable[[re.Match[str]], Iterator[_Conv]]], ...] = (
    (r"(?P<squeeze>se-)?resn(e|ex)t-?(?P<depth>50|101|152)(-(?P<groups>\d+x\d+)d)?", _resnet),
    (r"efficientnet-b(?P<scale>[0-7])", _efficientnet),
    (r"ssd300(?P<rest>.*)", _ssd300),
)
