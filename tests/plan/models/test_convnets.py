from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.plan.models.convnets import convnet


@pytest.mark.parametrize(
    ("name", "millions", "gmacs"),  # as torchvision's pages give them
    [
        ("ResNet-50 v1.5", 25.6, 4.09),
        ("ResNeXt101-32x4d", 44.2, 8.0),
        ("EfficientNet-B0", 5.3, 0.39),
        ("EfficientNet-B4", 19.3, 4.4),
    ],
)
def test_convolutional_networks_have_their_published_size(name, millions, gmacs):
    found = convnet(name)
    assert found.params / 1e6 == pytest.approx(millions, rel=0.02)
    assert found.flops / 2e9 == pytest.approx(gmacs, rel=0.03)


def test_an_unknown_network_names_the_known_ones():
    with pytest.raises(UsageError, match="the known networks are ResNet"):
        convnet("VGG-16")
