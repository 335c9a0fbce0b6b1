"""Draw a recorded terminal session as one animated SVG: CSS only, no script, no font file, no request.

Each version of a line is an element that is visible between two times of the animation; the lines move up together
where the text scrolls. Time passes as it was recorded, but no wait is longer than ``LONGEST_WAIT_S``; the title shows
the real time. Viewers who ask for reduced motion see the last picture.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape

from _recording import Recording
from _screen import Run, Screen, Style

LONGEST_WAIT_S = 1.2  # of the animation; what took longer is shortened to it
TYPED_S = 0.22  # for each word of a command
READING_S = 3.5  # after the output of a command
END_S = 7.0

CELL, LINE, FONT = 8.4, 18.0, 14.0  # pixels: width of a character, height of a line, size of the font
MARGIN, BAR = 14.0, 34.0  # pixels: around the text, of the title bar
BACKGROUND, BAR_COLOUR, TEXT, FAINT = "#0d1117", "#161b22", "#e6edf3", "#8b949e"

Lines = list[tuple[Run, ...]]


@dataclass
class Film:
    """What is on the screen from which time of the animation on."""

    now_s: float = 0.0
    stills: list[tuple[float, Lines, str]] = field(default_factory=list)  # time, lines, title

    def show(self, lines: Lines, title: str) -> None:
        """Add what is on the screen from now on."""
        if self.stills and self.stills[-1][0] == self.now_s:
            self.stills.pop()
        self.stills.append((self.now_s, lines, title))


@dataclass(frozen=True)
class Shown:
    """One version of a line and the interval of the animation in which it is visible; ``end_s`` None: to the end."""

    row: int
    runs: tuple[Run, ...]
    begin_s: float
    end_s: float | None


def film_of(recording: Recording) -> Film:
    """Return the stills of a recording, with waits shortened and commands typed word by word."""
    film, screen, before_s = Film(), Screen(recording.columns), 0.0
    for number, (at_s, kind, text) in enumerate(recording.events):
        title = f"real time {clock(at_s)}"
        if kind == "i":
            film.now_s += READING_S if number else 0.0
            _type(film, screen, text, title)
        else:
            film.now_s = round(film.now_s + min(at_s - before_s, LONGEST_WAIT_S), 2)
            screen.feed(text)
            film.show(screen.lines(), title)
        before_s = at_s
    film.now_s = round(film.now_s + END_S, 2)
    return film


def clock(seconds: float) -> str:
    """Return a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _type(film: Film, screen: Screen, command: str, title: str) -> None:
    """Type a command at a prompt, a word at a time."""
    screen.feed("\r\n" * (bool(screen.column) + bool(_used(screen.lines()) and screen.lines()[-2:][0])))
    screen.feed("\x1b[1;32m$\x1b[0m\x1b[1m")
    for word in re.findall(r"\S+", command):
        screen.feed(f" {word}")
        film.show(screen.lines(), title)
        film.now_s = round(film.now_s + TYPED_S, 2)
    screen.feed("\x1b[0m\r\n")


def versions(stills: Sequence[tuple[float, Lines, str]]) -> Iterator[Shown]:
    """Yield every version of every line with the time it is visible."""
    open_rows: dict[int, tuple[tuple[Run, ...], float]] = {}
    for at_s, lines, _ in stills:
        for row in set(open_rows) | set(range(len(lines))):
            runs = lines[row] if row < len(lines) else ()
            known, begin_s = open_rows.get(row, ((), at_s))
            if runs != known:
                if known:
                    yield Shown(row, known, begin_s, at_s)
                open_rows[row] = (runs, at_s)
    for row, (runs, begin_s) in open_rows.items():
        if runs:
            yield Shown(row, runs, begin_s, None)


def render(recording: Recording, at_s: float | None = None) -> str:
    """Return the SVG.

    Args:
        recording: A session.
        at_s: Stop the animation at this time, in seconds; None lets it run.
    """
    film = film_of(recording)
    animation = Animation(film.now_s, at_s)
    height = BAR + 2 * MARGIN + recording.rows * LINE
    rows = "".join(_row(shown, animation) for shown in sorted(versions(film.stills), key=lambda s: (s.row, s.begin_s)))
    tops = [(at, -LINE * max(_used(lines) - recording.rows, 0)) for at, lines, _ in film.stills]
    inside = f'<g class="a {animation.move(tops)}" style="transform:translateY({tops[-1][1]:g}px)">{rows}</g>'
    width = 2 * MARGIN + recording.columns * CELL
    title = _title(recording, film, animation, width)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img"><title>{escape(summary(recording))}</title>'
        f"<style>{STYLE}{animation.style()}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{BACKGROUND}"/>{title}'
        f'<svg x="{MARGIN:g}" y="{BAR + MARGIN:g}" width="{width - 2 * MARGIN:g}" height="{recording.rows * LINE:g}">'
        f"{inside}</svg></svg>\n"
    )


def summary(recording: Recording) -> str:
    """Return what the picture shows, for readers that cannot see it."""
    typed = "; ".join(text for _, kind, text in recording.events if kind == "i")
    took = clock(recording.events[-1][0])
    return f"Recording of a terminal on {recording.machine}, {recording.date}, {took} of real time: {typed}"


STYLE = (
    'text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;'
    f"fill:{TEXT}}}.b{{font-weight:700}}.d{{opacity:.62}}.f{{fill:{FAINT};font-size:12px}}.h{{visibility:hidden}}"
)


class Animation:
    """The keyframes of the picture; equal ones are written once."""

    def __init__(self, length_s: float, at_s: float | None) -> None:
        self.length_s, self.at_s = length_s, at_s
        self.names: dict[str, str] = {}

    def visible(self, begin_s: float, end_s: float | None) -> str:
        """Return the class of what is visible from one time to another."""
        frames = ["0%{visibility:hidden}"] if begin_s else []
        frames.append(f"{self._percent(begin_s)}{{visibility:visible}}")
        frames.append("100%{visibility:visible}" if end_s is None else f"{self._percent(end_s)}{{visibility:hidden}}")
        return self._class("".join(frames))

    def move(self, tops: Sequence[tuple[float, float]]) -> str:
        """Return the class of what is moved down by so many pixels from each time on."""
        changes = [tops[0], *(after for before, after in pairwise(tops) if after[1] != before[1])]
        frames = [(f"{self._percent(at)}", f"{{transform:translateY({y:g}px)}}") for at, y in changes]
        return self._class("".join(at + to for at, to in [*frames, ("100%", frames[-1][1])]))

    def style(self) -> str:
        """Return the style sheet."""
        held = "" if self.at_s is None else f";animation-play-state:paused;animation-delay:-{self.at_s:g}s"
        rules = [f".a{{animation:{self.length_s:g}s step-end infinite{held}}}"]
        for frames, name in self.names.items():
            rules.append(f".{name}{{animation-name:{name}}}@keyframes {name}{{{frames}}}")
        rules.append("@media (prefers-reduced-motion:reduce){.a{animation:none}}")
        return "".join(rules)

    def _percent(self, at_s: float) -> str:
        return f"{100 * at_s / self.length_s:.3f}".rstrip("0").rstrip(".") + "%"

    def _class(self, frames: str) -> str:
        return self.names.setdefault(frames, f"k{len(self.names)}")


def _used(lines: Lines) -> int:
    """Return the number of lines up to the last one with text."""
    return max((row + 1 for row, runs in enumerate(lines) if runs), default=0)


def _row(shown: Shown, animation: Animation) -> str:
    """Draw one version of a line."""
    name = animation.visible(shown.begin_s, shown.end_s)
    hidden = "" if shown.end_s is None else " h"
    runs = "".join(_run(run, shown.row) for run in shown.runs)
    return f'<g class="a {name}{hidden}">{runs}</g>'


def _run(run: Run, row: int) -> str:
    """Draw characters of one style: solid blocks as a rectangle, all else as text of a fixed width."""
    column, text, style = run
    x, width = column * CELL, len(text) * CELL
    if set(text) == {"█"}:
        return f'<rect x="{x:g}" y="{row * LINE + 2:g}" width="{width:g}" height="14" fill="{style.colour or TEXT}"/>'
    blank = len(text) - len(text.lstrip())
    x, width, text = x + blank * CELL, width - blank * CELL, text.lstrip()
    return (
        f'<text x="{x:g}" y="{row * LINE + FONT - 1:g}" textLength="{width:g}"{_look(style)} '
        f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
    )


def _look(style: Style) -> str:
    """Return the attributes of a style; colours go into ``style``, which wins over the style sheet."""
    names = " ".join(name for name, on in (("b", style.bold), ("d", style.dim)) if on)
    return (f' class="{names}"' if names else "") + (f' style="fill:{style.colour}"' if style.colour else "")


def _title(recording: Recording, film: Film, animation: Animation, width: float) -> str:
    """Draw the title bar: what is shortened on the left, the real time on the right."""
    parts = [
        f'<path d="M0 8a8 8 0 0 1 8-8h{width - 16:g}a8 8 0 0 1 8 8v{BAR - 8:g}H0z" fill="{BAR_COLOUR}"/>',
        f'<text class="f" x="{MARGIN:g}" y="22">{escape(recording.machine)}, {recording.date} · '
        f"waits longer than {LONGEST_WAIT_S:g} s are shortened</text>",
    ]
    changes = [film.stills[0], *(after for before, after in pairwise(film.stills) if after[2] != before[2])]
    ends = [*(still[0] for still in changes[1:]), None]
    for (begin_s, _, text), end_s in zip(changes, ends):
        name = animation.visible(begin_s, end_s)
        hidden = "" if end_s is None else " h"
        parts.append(f'<text class="f a {name}{hidden}" x="{width - MARGIN:g}" y="22" text-anchor="end">{text}</text>')
    return "".join(parts)
