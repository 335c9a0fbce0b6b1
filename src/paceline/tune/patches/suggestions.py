"""Suggestions for the user's own lines: changes that no recipe can make and that no patch writes.

The findings name the lines. A suggestion has a diff only if the edit is clearly safe: a one-line statement is changed
to run every n-th step, or a sum to stay a tensor. All other suggestions are text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.explain.model import Finding, Remedy
from paceline.tune.patches.model import Patch, SourceFile, diff_of

EVERY = 50  # steps
_LINE = re.compile(r"\(([^()]+\.py):(\d+)\)")
_SHARDS = "loader.shards"
# The remedy that is suggested at the lines of a finding.
_AT_NAMED_LINES: Mapping[str, str] = {"COMP003": "sync.less_often", "RUN006": "host.less_often"}
_AT_SAVES: Mapping[str, str] = {"RUN001": "checkpoint.less_often"}
_SAVERS = ("torch.save", "save_file", "save_model")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One change that a user can make at a line of the source."""

    finding: str  # its code
    remedy: str  # its id in the table of remedies
    where: str  # such as train.py:30
    text: str
    diff: str | None  # None if no edit is plainly safe


def suggestions(findings: Sequence[Finding], sources: Sequence[SourceFile]) -> list[Suggestion]:
    """Return the suggestions of findings for lines of the sources, one per line."""
    by_line: dict[str, Suggestion] = {}
    for finding in findings:
        remedy = _remedy(finding)
        if remedy is not None:
            for source, line in _places(finding, sources):
                one = _suggest(finding, remedy, source, line)
                by_line.setdefault(one.where, one)
    return list(by_line.values())


def _remedy(finding: Finding) -> Remedy | None:
    """Return the remedy of a finding that changes lines of the source; None if the finding has none."""
    wanted = {**_AT_NAMED_LINES, **_AT_SAVES}.get(finding.code, _SHARDS)
    return next((remedy for remedy in finding.remedies if remedy.id == wanted), None)


def _places(finding: Finding, sources: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, int]]:
    if finding.code in _AT_NAMED_LINES:
        named = [place for evidence in finding.evidence for place in _LINE.findall(evidence.text)]
        for name, line in named:
            own = [source for source in sources if source.path.name == name]
            if len(own) == 1:
                yield own[0], int(line)
        return
    find_lines = _saves_in_loops if finding.code in _AT_SAVES else _loaders
    for source in sources:
        yield from ((source, line) for line in find_lines(source))


def _saves_in_loops(source: SourceFile) -> list[int]:
    """Return the lines that save a checkpoint inside a loop."""
    loops = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.For)]
    calls = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return sorted({call.lineno for call in calls if ast.unparse(call.func).endswith(_SAVERS)})


def _loaders(source: SourceFile) -> list[int]:
    """Return the lines that create a DataLoader."""
    calls = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Call)]
    return sorted({call.lineno for call in calls if ast.unparse(call.func).split(".")[-1] == "DataLoader"})


def _suggest(finding: Finding, remedy: Remedy, source: SourceFile, line: int) -> Suggestion:
    changed = _changed(source, line)
    diff = diff_of(Patch(before=[source], after=[changed], stays=())) if changed is not None else None
    return Suggestion(
        finding=finding.code, remedy=remedy.id, where=f"{source.path}:{line}", text=remedy.change, diff=diff
    )


def _changed(source: SourceFile, line: int) -> SourceFile | None:
    """Return the source with one line edited to run less often or to keep a tensor; None if no edit is clearly safe."""
    tree = ast.parse(source.text)
    statement = next((s for s in ast.walk(tree) if isinstance(s, ast.stmt) and s.lineno == s.end_lineno == line), None)
    lines = source.text.split("\n")
    own = lines[line - 1]
    if isinstance(statement, ast.AugAssign) or _appends(statement):
        new = [own.replace(".item()", ".detach()")]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and _counter(tree, line):
        margin, end = own[: len(own) - len(own.lstrip())], "\r" if own.endswith("\r") else ""
        new = [f"{margin}if {_counter(tree, line)} % {EVERY} == 0:{end}", f"    {own}"]
    else:
        return None
    text = "\n".join([*lines[: line - 1], *new, *lines[line:]])
    return replace(source, text=text) if text != source.text else None


def _appends(statement: ast.stmt | None) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"


def _counter(tree: ast.Module, line: int) -> str:
    """Return the counter of the loop around a line: ``step`` in ``for step, x in enumerate(loader)``; "" if none."""
    around = [n for n in ast.walk(tree) if isinstance(n, ast.For) and n.body[0].lineno <= line <= (n.end_lineno or 0)]
    loop = max(around, key=lambda one: one.lineno, default=None)
    if loop is None or not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "enumerate":
        return ""
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    return first.id if isinstance(first, ast.Name) else ""
