"""The characters that a console can print."""

from __future__ import annotations

from rich.console import Console

_ASCII = str.maketrans(
    {"×": "x", "·": "-", "■": "#", "█": "#", "▓": "%", "▒": "=", "░": ".", "✗": "x", "▲": "!", "✓": "+"}
    | {"–": "-", "→": ">", "µ": "u", "\N{REPLACEMENT CHARACTER}": "?", "\N{NO-BREAK SPACE}": " ", "●": "*", "°": " "}
)


def encodable(text: str, *, console: Console) -> str:
    """Return text that the console can print. An ASCII console gets similar ASCII characters for all others."""
    return text.translate(_ASCII) if console.options.ascii_only else text
