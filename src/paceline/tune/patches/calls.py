"""How is something set for the whole process, by a statement such as ``torch.set_num_threads(4)``?"""

from __future__ import annotations

import re

import libcst as cst

from paceline.tune.patches.above import Snippet
from paceline.tune.patches.arguments import code_of
from paceline.tune.patches.edit import Edit


def with_value(edit: Edit, function: str, value: str, original: cst.Call, call: cst.Call) -> cst.Call:
    """Return the program's own call of a function of torch's with another value; other calls as they are.

    Calls in a function named for a worker stay: they are meant for the loader's workers alone.
    """
    for_worker = any("worker" in name for name in edit.tree.functions_around(original))
    if f"torch.{function}" not in edit.tree.names(original.func) or for_worker:
        return call
    return call.with_changes(args=[cst.Arg(cst.parse_expression(value))])


def add_call(edit: Edit, key: str, function: str, value: str) -> None:
    """Put a call behind the imports of the script, unless it makes one at its top level itself."""
    if not edit.source.is_script:
        return
    edit.place(key)
    own = [part for line in edit.tree.module.body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    calls = [part.value for part in own if isinstance(part, cst.Expr) and isinstance(part.value, cst.Call)]
    if not any(f"torch.{function}" in edit.tree.names(one.func) for one in calls):
        edit.snippets.append(Snippet(code=f"torch.{function}({value})\n"))


def set_unless_own(edit: Edit, key: str, statement: str, own: re.Pattern[str]) -> None:
    """Put a statement behind the imports of the script, unless the file chooses itself.

    Args:
        edit: The edit of one file.
        key: The setting.
        statement: What puts it in force.
        own: The whole names of what the file would call or assign to, to choose itself.
    """
    module = edit.tree.module
    said: list[cst.Call | cst.Assign] = [*edit.tree.within(module, cst.Call), *edit.tree.within(module, cst.Assign)]
    chosen = [node for node in said if _about(edit, node, own)]
    other = next((node for node in chosen if code_of(node).replace("'", '"') != statement), None)
    if other is not None:
        edit.stay(key, f"{edit.where(other)} has {code_of(other)}")
    elif edit.source.is_script:
        edit.place(key)
        edit.snippets += [] if chosen else [Snippet(code=f"{statement}\n")]


def _about(edit: Edit, node: cst.Call | cst.Assign, own: re.Pattern[str]) -> bool:
    said = [node.func] if isinstance(node, cst.Call) else [target.target for target in node.targets]
    return any(own.fullmatch(name) for one in said for name in edit.tree.names(one))
