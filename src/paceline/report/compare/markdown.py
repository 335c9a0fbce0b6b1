"""A comparison as Markdown for a pull request: the outcome, a table, the reasons."""

from __future__ import annotations

from paceline.explain.comparison import METHOD, Comparison
from paceline.report.compare.rows import ComparisonRow, reasons, rows
from paceline.report.markdown import code, escape

_MARKS = {"regression": "🔴", "slower": "🟠", "cannot-tell": "🔵", "same": "🟢", "faster": "🟢"}


def comparison_to_markdown(comparison: Comparison) -> str:
    """Return a comparison as GitHub-flavoured Markdown, for a comment on a pull request."""
    parts = [
        f"### {_MARKS[comparison.outcome]} {code(comparison.outcome)}",
        escape(comparison.text),
        _table(comparison),
        "\n".join(f"- {label}: {escape(text)}" for label, text in reasons(comparison)),
        f"<sub>{code(comparison.before.run_id)} → {code(comparison.after.run_id)}; {escape(METHOD)}</sub>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(comparison: Comparison) -> str:
    lines = [_row(row) for row in rows(comparison)]
    heads = ["| | before | after | change (95% interval) |", "|:--|--:|--:|--:|"]
    return "\n".join([*heads, *lines]) if lines else ""


def _row(row: ComparisonRow) -> str:
    change = f"**{escape(row.change)}**" if row.certain else escape(row.change)
    return f"| {escape(row.label)} | {escape(row.before)} | {escape(row.after)} | {change} |"
