"""A terminal's screen: the text of its lines with their style, after the bytes that programs sent.

Interpreted are what line-by-line reports and progress bars send: printable text, newline, carriage return, backspace,
moving the cursor, erasing, and colours (ECMA-48, SGR). All other control sequences are skipped. The screen has no
lowest line: lines stay when the text scrolls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import groupby

_TOKEN = re.compile(
    r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b.|([\x00-\x1f])"
)
_PARTIAL = re.compile(r"\x1b(?:\[[0-9;?]*|\][^\x07\x1b]*)?$")
# xterm's 16 colours in the order of SGR 30 to 37 and 90 to 97, for a dark background.
PALETTE = (
    "#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
    "#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc",
)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How a character looks; a colour of None is the default."""

    colour: str | None = None
    bold: bool = False
    dim: bool = False


Run = tuple[int, str, Style]  # first column, text, style
PLAIN = Style()


@dataclass
class Screen:
    """Lines of cells and a cursor."""

    columns: int
    cells: list[list[tuple[str, Style]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: Style = PLAIN
    _rest: str = ""

    def feed(self, text: str) -> None:
        """Apply what a program sent; a control sequence may be cut between two calls."""
        text = self._rest + text
        partial = _PARTIAL.search(text)
        self._rest = partial[0] if partial else ""
        text = text[: len(text) - len(self._rest)]
        at = 0
        for token in _TOKEN.finditer(text):
            self._print(text[at : token.start()])
            at = token.end()
            if token[3]:
                self._control(token[3])
            elif token[2]:
                self._sequence(token[1], token[2])
        self._print(text[at:])

    def lines(self) -> list[tuple[Run, ...]]:
        """Return each line as runs of characters in one style, without blanks at its end."""
        return [_runs(cells) for cells in self.cells]

    def _print(self, text: str) -> None:
        for character in text:
            if self.column >= self.columns:
                self._control("\r")
                self._control("\n")
            line = self.cells[self.row]
            line.extend([(" ", PLAIN)] * (self.column + 1 - len(line)))
            line[self.column] = (character, self.style)
            self.column += 1

    def _control(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self._move_to(self.row + 1)
        elif character == "\b":
            self.column = max(self.column - 1, 0)
        elif character == "\t":
            self._print(" " * (8 - self.column % 8))

    def _move_to(self, row: int) -> None:
        self.row = max(row, 0)
        self.cells.extend([] for _ in range(self.row + 1 - len(self.cells)))

    def _sequence(self, numbers: str, kind: str) -> None:
        given = [int(number) for number in numbers.split(";") if number.isdigit()]
        count = given[0] if given else 0
        if kind in "AB":
            self._move_to(self.row + (max(count, 1) if kind == "B" else -max(count, 1)))
        elif kind in "CD":
            self.column = max(self.column + (max(count, 1) if kind == "C" else -max(count, 1)), 0)
        elif kind == "G":
            self.column = max(count - 1, 0)
        elif kind == "K":
            self._erase(count)
        elif kind == "J" and count == 0:
            self._erase(0)
            for line in self.cells[self.row + 1 :]:
                line.clear()
        elif kind == "m":
            self.style = _styled(self.style, given or [0])

    def _erase(self, which: int) -> None:
        """Erase to the end of the line (0), from its beginning (1), or all of it (2)."""
        line = self.cells[self.row]
        if which != 1:
            del line[0 if which == 2 else self.column :]
        else:
            line[: self.column] = [(" ", PLAIN)] * min(self.column, len(line))


def _styled(style: Style, codes: list[int]) -> Style:
    """Return a style after the codes of one SGR sequence."""
    codes = list(codes)
    while codes:
        code = codes.pop(0)
        style = _extended(style, code, codes) if code in (38, 48) else _one_code(style, code)
    return style


def _one_code(style: Style, code: int) -> Style:
    if code == 0:
        return PLAIN
    if code in (1, 2, 22):
        return replace(style, bold=code == 1 or (style.bold and code != 22), dim=code == 2)
    if 30 <= code <= 37 or 90 <= code <= 97:
        return replace(style, colour=PALETTE[code - 30 if code < 90 else code - 82])
    return replace(style, colour=None) if code == 39 else style


def _extended(style: Style, code: int, codes: list[int]) -> Style:
    """Take the codes of a colour by number (5;N) or by value (2;R;G;B)."""
    kind = codes.pop(0) if codes else 0
    taken = [codes.pop(0) for _ in range(min({5: 1, 2: 3}.get(kind, 0), len(codes)))]
    colour = style.colour
    if kind == 2 and len(taken) == 3:
        colour = "#{:02x}{:02x}{:02x}".format(*taken)
    elif kind == 5 and taken:
        colour = indexed_colour(taken[0])
    return replace(style, colour=colour) if code == 38 else style


def indexed_colour(number: int) -> str:
    """Return xterm's colour of a number from 0 to 255."""
    if number < 16:
        return PALETTE[number]
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    steps = (0, 95, 135, 175, 215, 255)
    number -= 16
    return f"#{steps[number // 36]:02x}{steps[number // 6 % 6]:02x}{steps[number % 6]:02x}"


def _runs(cells: list[tuple[str, Style]]) -> tuple[Run, ...]:
    runs, column = [], 0
    for style, group in groupby(cells, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in group)
        runs.append((column, text, style))
        column += len(text)
    while runs and not runs[-1][1].strip():
        runs.pop()
    if runs:
        column, text, style = runs[-1]
        runs[-1] = (column, text.rstrip(), style)
    return tuple(run for run in runs if run[1].strip())
