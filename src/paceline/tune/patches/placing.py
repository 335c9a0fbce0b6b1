"""Determines where a patch sets an argument of a loader: in the call, where its value comes from, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import libcst as cst

from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.source.configs import ConfigChange, Section, in_yaml
from paceline.tune.patches.source.declarations import ValueOrigin
from paceline.tune.patches.source.origins import Trace, Tracer
from paceline.tune.patches.source.program import ProgramFiles
from paceline.tune.patches.source.syntax_tree import Tree, argument, code_of
from paceline.tune.patches.source.uses import only_in_loaders


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where an argument is set.

    Attributes:
        where: ``here``: in the call, by keyword or position. ``over``: in the call, overriding a mapping that it
            unpacks. ``origin``: at the place that the value comes from. ``nowhere``: a user has to set the argument.
        now: The current value as source text; None if there is no value, or it is unknown.
        why_not: What a user has to set, if the argument is set nowhere.
        origin: The place from which the call takes the value.
        section: The section of a configuration file to which the value is added.
    """

    where: Literal["here", "over", "origin", "nowhere"]
    now: str | None = None
    why_not: str = ""
    origin: ValueOrigin | None = None
    section: tuple[SourceFile, Section] | None = None


def find_place(
    program: ProgramFiles, tree: Tree, call: cst.Call, name: str, value: object, order: Sequence[str] = ()
) -> Placing:
    """Return where to set an argument of a call, without changing anything.

    Args:
        program: The program.
        tree: The syntax tree of the call's file.
        call: The call as it is in the file.
        name: The argument.
        value: Its new value.
        order: The parameters of the called function, in order.
    """
    tracer = Tracer(program)
    given = argument(call, name, order)
    if given is not None:
        trace = tracer.trace(tree, given.value)
        return _of_given(program, trace, name, value, code_of(given.value))
    unpacked = [arg.value for arg in call.args if arg.star == "**"]
    traces = [tracer.in_mapping(tree, one, name) for one in unpacked]
    if all(one.is_absent for one in traces):
        return Placing(where="here")
    trace = next(one for one in traces if not one.is_absent)
    if not trace.origins and len(trace.lacking) != 1:
        text = ", ".join(code_of(one) for one in unpacked)
        return Placing(where="nowhere", why_not=f'passes its arguments with * or **: add "{name}": {value!r} to {text}')
    found = _of_given(program, trace, name, value, None)
    return replace(found, where="over") if found.where == "here" else found


def _of_given(program: ProgramFiles, trace: Trace, name: str, value: object, text: str | None) -> Placing:
    """Return where to change a value that the program passes to the call."""
    if len(trace.lacking) == 1 and not trace.origins:
        return Placing(where="origin", section=trace.lacking[0])
    now = trace.origins[0].text if trace.is_exact and len(trace.origins) == 1 else text
    only = trace.origins[0] if len(trace.origins) == 1 and trace.is_exact else None
    can_change = only is not None and only.can_change and not _is_set_by_command(program, only)
    can_change = can_change and only is not None and not _is_referred_to(program, only)
    if only is not None and can_change and only_in_loaders(program, trace.aliases):
        return Placing(where="origin", now=now, origin=only)
    if trace.is_unknown and not trace.origins:
        why = f"has {name}={text}: the source does not say where it comes from; set it so that {name}={value!r}"
        return Placing(where="nowhere", now=now, why_not=why)
    if not trace.is_declared:
        return Placing(where="here", now=now)
    said = f"has {name}={text}" if text is not None else f"unpacks {name}"
    return Placing(where="nowhere", now=now, why_not=f"{said}: {_advice(trace.origins, name, value)}")


def change_origin(program: ProgramFiles, placing: Placing, name: str, value: object) -> None:
    """Register a change of a value where it is defined: a default, a constant, an argument or a configuration file."""
    origin = placing.origin
    if placing.section is not None:
        source, section = placing.section
        new = section.form.format(key=name, value=in_yaml(value))
        program.changes[source.path].append(ConfigChange(start=section.at, end=section.at, text=new))
    elif origin is not None and origin.config is not None:
        source, scalar = origin.config
        program.changes[source.path].append(ConfigChange(start=scalar.start, end=scalar.end, text=in_yaml(value)))
    elif origin is not None and origin.node is not None:
        program.values[origin.node] = repr(value)


def _is_referred_to(program: ProgramFiles, origin: ValueOrigin) -> bool:
    """Return whether a configuration value refers to another value, as in ``${workers}``, or is itself referred to."""
    if origin.config is None:
        return False
    return "${" in origin.text or any(f"${{{origin.what}}}" in config.source.text for config in program.configs)


def _is_set_by_command(program: ProgramFiles, origin: ValueOrigin) -> bool:
    """Return whether the command that starts the program sets the value, so that its default has no effect."""
    flags = {*origin.flags, f"--{origin.what}", origin.what, f"+{origin.what}", f"++{origin.what}"}
    last = origin.what.rpartition(".")[2]
    flags |= {f"--{last}", f"--{last.replace('_', '-')}"}
    words = [word.partition("=")[0] for word in program.command]
    return any(word in flags or (word.startswith("--") and word.endswith(f".{last}")) for word in words)


def _advice(origins: Sequence[ValueOrigin], name: str, value: object) -> str:
    """Return a text that says what a user has to set."""
    declared = [one for one in origins if one.is_declared]
    if all(one.flags for one in declared):
        flags = " and ".join(dict.fromkeys(one.what for one in declared))
        return f"set {flags} for {value} workers" if name == "num_workers" else f"set {flags} so that {name}={value!r}"
    places = " and ".join(dict.fromkeys(f"{one.what} ({one.where})" for one in declared))
    return f"set {places} so that {name}={value!r}"
