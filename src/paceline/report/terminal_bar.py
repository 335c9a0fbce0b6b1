"""How is a breakdown drawn in one line of text? Cells by largest remainder, colours or shades, and a legend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from rich.text import Text

from paceline.core import units
from paceline.report.phases import PhaseStyle

Shares = Sequence[tuple[PhaseStyle, float]]
_SHADES = "█░▓▒"
_REST = "·"


def cells(shares: Sequence[float], width: int) -> list[int]:
    """Share out ``width`` cells in proportion, by largest remainder; the sum is exactly ``width``."""
    whole = sum(shares)
    exact = [share / whole * width for share in shares]
    given = [int(cell) for cell in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: given[i] - exact[i])
    for i in by_rest[: width - sum(given)]:
        given[i] += 1
    return given


def bar(phases: Shares, width: int, coloured: bool, encoded: Callable[[str], str]) -> Text:
    """Draw the phases as one line of blocks; what they leave of the whole ends it as dots."""
    rest = max(0.0, 1.0 - sum(share for _, share in phases))
    *counts, dots = cells([*(share for _, share in phases), rest], width)
    text = Text(no_wrap=True)
    for (style, _), glyph, number in zip(phases, _glyphs(phases, coloured), counts, strict=True):
        text.append(encoded(glyph) * number, style=style.dark if coloured else "")
    return text.append(encoded(_REST) * dots, style="dim")


def legend(phases: Shares, width: int, coloured: bool, encoded: Callable[[str], str]) -> list[Text]:
    """Name the phases in the order of the bar; lines break between phases only."""
    lines: list[Text] = []
    for (style, share), glyph in zip(phases, _glyphs(phases, coloured), strict=True):
        swatch = (encoded("■" if coloured else glyph), style.dark if coloured else "")
        entry = Text.assemble(swatch, f" {style.label} {units.percent(share)}")
        if lines and lines[-1].cell_len + 3 + entry.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "   ", entry)
        else:
            lines.append(entry)
    return lines


def _glyphs(phases: Shares, coloured: bool) -> list[str]:
    """Return a glyph for each phase; without colour, neighbours never share one."""
    shades = cycle("█" if coloured else _SHADES)
    return [next(shades) for _ in phases]
