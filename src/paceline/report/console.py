"""The characters that a console can print."""

from __future__ import annotations

from rich.console import Console

_ASCII = str.maketrans(
    {"×": "x", "·": "-", "■": "#", "█": "#", "▓": "%", "▒": "=", "░": ".", "✗": "x", "▲": "!", "✓": "+"}
    | {"–": "-", "→": ">", "µ": "u", "\N{REPLACEMENT CHARACTER}": "?", "\N{NO-BREAK SPACE}": " ", "●": "*", "°": " "}
)


def encodable(text: str, *, console: Console) -> str:
    """Return text that the console can print: on an ASCII console, special characters become similar ASCII ones."""
    return text.translate(_ASCII) if console.options.ascii_only else text
