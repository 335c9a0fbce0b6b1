"""The picture of `benchmarks/modes.py`: the loss over time in each mode, and when it was down to what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

WIDTH, HEIGHT = 1100, 470
TOP, BOTTOM = 70, 410
COLOURS = ("#222222", "#b8860b", "#c2410c", "#93c5fd", "#3b82f6", "#1e3a8a")
Scale = Callable[[float], float]


def scale(low: float, high: float, begin: float, end: float) -> Scale:
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{words}</text>'


def line(points: Sequence[tuple[float, float]], colour: str, width: float, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" {more}/>'


def ticks(high: float, about: int) -> list[float]:
    step = next(step for step in (0.5, 1, 2, 5, 10, 20, 50) if high / step <= about)
    return [step * i for i in range(int(high / step) + 1)]


def of_curves(curves: list[dict], colours: dict[str, str], target: float, edges: tuple[float, float]) -> list[str]:
    """Loss over time, a line for each seed."""
    begin, end = edges
    first = next(iter(colours))
    last = 2 * median(one["seen"][-1][0] for one in curves if one["mode"] == first)  # who takes longer is cut off
    low, high = target - 0.05, target + 1.1
    x, y = scale(0, last, begin, end), scale(low, high, BOTTOM, TOP)
    parts = [
        text(begin, TOP - 14, "Loss on held-out text, one of 4 ranks slowed to a quarter; each line a seed", size=13)
    ]
    for value in ticks(last, 8):
        parts.append(line([(x(value), TOP), (x(value), BOTTOM)], "#e5e5e5", 1))
        parts.append(text(x(value), BOTTOM + 18, f"{value:g}", "middle"))
    for value in (low + 0.05, low + 0.3, low + 0.55, low + 0.8, low + 1.05):
        parts.append(text(begin - 8, y(value) + 4, f"{value:.2f}", "end"))
    parts.append(line([(begin, y(target)), (end, y(target))], "#dc2626", 1.2, 'stroke-dasharray="5 4"'))
    parts.append(text(end - 4, y(target) - 6, f"asked for: {target:g}", "end", colour="#dc2626"))
    for one in curves:
        points = [(x(time), y(min(high, max(low, loss)))) for time, loss in one["seen"] if time <= last]
        parts.append(line(points, colours[one["mode"]], 1.3, 'stroke-opacity="0.65"'))
    parts.append(text((begin + end) / 2, BOTTOM + 38, "seconds", "middle"))
    return parts


def of_times(found: dict[str, dict], colours: dict[str, str], edges: tuple[float, float]) -> list[str]:
    """Time to the loss: the median as a bar, the range over seeds as a line."""
    begin, end = edges
    every = [one for modes in found.values() for one in modes.values() if one["time_s"]]
    x = scale(0, max(one["time_s"]["range"][1] for one in every) * 1.18, begin, end)
    parts, y = (
        [text(begin - 110, TOP - 14, "Seconds to that loss: median, lowest to highest of the seeds", size=13)],
        TOP,
    )
    for condition, modes in found.items():
        parts.append(text(begin - 110, y + 12, condition, size=12))
        y += 22
        for mode, one in modes.items():
            parts.append(text(begin - 6, y + 12, mode, "end", 11))
            if one["time_s"]:
                (low, high), middle = one["time_s"]["range"], one["time_s"]["median"]
                size = f'width="{x(middle) - begin:.1f}" height="13"'
                bar = f'<rect x="{begin}" y="{y + 2}" {size} fill="{colours[mode]}"/>'
                parts += [bar, line([(x(low), y + 8.5), (x(high), y + 8.5)], "#999", 2)]
                parts.append(text(max(x(high), x(middle)) + 6, y + 13, f"{middle:.1f}", size=11))
            else:
                parts.append(text(begin + 4, y + 13, "not reached", size=11))
            y += 22
        y += 10
    return parts


def picture(found: dict[str, dict], curves: list[dict], target: float) -> str:
    """One SVG by itself."""
    modes = list(next(iter(found.values())))
    colours = dict(zip(modes, COLOURS))
    parts = of_curves(curves, colours, target, (50, 610)) + of_times(found, colours, (780, WIDTH - 30))
    for number, mode in enumerate(modes):
        y = TOP + 20 + 18 * number
        parts += [line([(440, y - 4), (464, y - 4)], colours[mode], 3), text(470, y, mode)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>"]) + "\n"
