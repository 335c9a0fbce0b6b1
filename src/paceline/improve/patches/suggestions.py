"""What at the user's own lines would help, and is not injected or written? Asking, logging, saving; reading many files.

Findings name the lines. Only what is plainly safe to show as a diff is shown so: an expression of its own line that is
done every n-th step, and a sum that is kept as a tensor. The rest is a sentence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from paceline.explain.model import Finding
from paceline.improve.patches.model import Patch, Source
from paceline.improve.patches.written import diff_of

EVERY = 50  # steps
_LINE = re.compile(r"\(([^()]+\.py):(\d+)\)")
_BY_LINE = ("COMP003", "RUN006")
_SAVES = "RUN001"
_SHARDS = "loader.shards"  # other data, and another loader: what comes out is not what comes out now
_SAVERS = ("torch.save", "save_file", "save_model")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One change for the user to think about."""

    finding: str  # code
    where: str  # train.py:30
    text: str
    diff: str | None  # None where no change is plainly safe


def suggestions(findings: Sequence[Finding], sources: Sequence[Source]) -> list[Suggestion]:
    """Return what findings suggest at lines of these sources."""
    found: dict[str, Suggestion] = {}
    for finding in findings:
        for source, line in _places(finding, sources):
            one = _at(finding, source, line)
            found.setdefault(one.where, one)
    return list(found.values())


def _places(finding: Finding, sources: Sequence[Source]) -> Iterator[tuple[Source, int]]:
    if finding.code in _BY_LINE:
        named = [place for evidence in finding.evidence for place in _LINE.findall(evidence.text)]
        for name, line in named:
            own = [source for source in sources if source.path.name == name]
            if len(own) == 1:
                yield own[0], int(line)
    elif finding.code == _SAVES:
        for source in sources:
            yield from ((source, line) for line in _saves_in_loops(source))
    elif any(remedy.id == _SHARDS for remedy in finding.remedies):
        for source in sources:
            yield from ((source, line) for line in _loaders(source))


def _saves_in_loops(source: Source) -> list[int]:
    loops = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.For)]
    calls = [node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return sorted({call.lineno for call in calls if ast.unparse(call.func).endswith(_SAVERS)})


def _loaders(source: Source) -> list[int]:
    """Return the lines where loaders are made."""
    calls = [node for node in ast.walk(ast.parse(source.text)) if isinstance(node, ast.Call)]
    return sorted({call.lineno for call in calls if ast.unparse(call.func).split(".")[-1] == "DataLoader"})


def _change(finding: Finding) -> str:
    """Return what a finding suggests at a line."""
    shards = [remedy for remedy in finding.remedies if remedy.id == _SHARDS]
    return (shards or finding.remedies)[-1 if finding.code == _SAVES else 0].change


def _at(finding: Finding, source: Source, line: int) -> Suggestion:
    changed = _changed(source, line)
    text = _change(finding)
    diff = diff_of(Patch(before=[source], after=[changed], stays=())) if changed is not None else None
    return Suggestion(finding=finding.code, where=f"{source.path}:{line}", text=text, diff=diff)


def _changed(source: Source, line: int) -> Source | None:
    """Return the source with a line done less often, or without asking for a number; None where that is not safe."""
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
    """Return the variable that counts the innermost loop around a line: ``for step, batch in enumerate(loader)``."""
    around = [n for n in ast.walk(tree) if isinstance(n, ast.For) and n.body[0].lineno <= line <= (n.end_lineno or 0)]
    loop = max(around, key=lambda one: one.lineno, default=None)
    if loop is None or not isinstance(loop.iter, ast.Call) or ast.unparse(loop.iter.func) != "enumerate":
        return ""
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    return first.id if isinstance(first, ast.Name) else ""
