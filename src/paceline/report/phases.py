"""Names and colours of the nine phases, used in every chart, table and bar.

The two sets of colours, for light and for dark backgrounds, have the same hues. They were optimized in OKLCH.
Neighbours in a stacked bar differ by at least 14 CIEDE2000; any two phases differ by at least 10 on light and 8 on dark
backgrounds, as seen with full colour vision and with each kind of colour blindness (matrices of Machado, Oliveira &
Fernandes, 2009).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.record.layout import PHASES


@dataclass(frozen=True, kw_only=True)
class PhaseStyle:
    """The label and the colours of one phase."""

    name: str  # as in layout.PHASES
    label: str
    meaning: str  # what happens in this phase, in a few words
    light: str  # colour on a light background, #rrggbb
    dark: str  # colour on a dark background, #rrggbb


def _style(name: str, label: str, meaning: str, light: str, dark: str) -> PhaseStyle:
    return PhaseStyle(name=name, label=label, meaning=meaning, light=light, dark=dark)


_ALL = (
    _style("data_wait", "data wait", "waiting for the next batch", "#b02a10", "#c42c10"),
    _style("transfer", "transfer", "copying a batch to the device", "#dc911f", "#f2c23c"),
    _style("forward", "forward", "computing outputs and the loss", "#3989a7", "#84d8f0"),
    _style("backward", "backward", "computing gradients", "#3b54b3", "#5064d4"),
    _style("optimizer", "optimizer", "updating the parameters", "#9e90e8", "#b98eea"),
    _style("communication", "communication", "exchanging gradients and waiting for other ranks", "#8f396d", "#a34a6c"),
    _style("checkpoint", "checkpoint", "saving checkpoints", "#ab7734", "#c4913a"),
    _style("evaluation", "evaluation", "forward passes without gradients", "#79ad86", "#8ec39b"),
    _style("other", "other", "the program's own code between phases", "#7d7f82", "#848b93"),
)
STYLES: Mapping[str, PhaseStyle] = {style.name: style for style in _ALL}


def shown(shares: Mapping[str, float], floor: float = 0.02) -> list[tuple[PhaseStyle, float]]:
    """Return the phases whose share is above ``floor``, in the order of `layout.PHASES`."""
    return [(STYLES[name], shares[name]) for name in PHASES if shares.get(name, 0.0) > max(floor, 0.0)]


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb``, from 0 (black) to 1 (white); WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21; WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def text_on(colour: str) -> str:
    """Return black or white, whichever has more contrast with the colour."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))
