"""Configuration files of a program, in YAML or JSON: find the files, read their values by key, and change values.

For Hydra, the files are those that the ``defaults`` list and the command select; the keys of a group's values start
with the group's name. A change replaces the text of one value, or adds a line to a section; the rest of the file stays
unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.tune.patches.model import SourceFile

_SUFFIXES = (".yaml", ".yml", ".json")
_QUOTED = re.compile(r"""["']([^"'\n{}]+)["']""")
_HYDRA = re.compile(r"@\s*(?:hydra\.)?main\s*\(([^)]*)\)")
_MOST, _LARGEST = 100, 256 << 10  # files, bytes of one


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value in a configuration file."""

    keys: tuple[str, ...]  # such as ("data", "num_workers")
    text: str
    start: int  # index in the text of the file
    end: int
    line: int  # from 1


@dataclass(frozen=True, kw_only=True)
class Section:
    """One mapping in a configuration file, and how to add a key to it."""

    keys: tuple[str, ...]
    names: frozenset[str]  # names of its keys
    at: int  # index in the text where a new key is inserted
    form: str  # template of the inserted text, with {key} and {value}
    line: int


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file of the program."""

    source: SourceFile
    group: tuple[str, ...] = ()  # Hydra's group, which precedes all keys
    is_chosen: bool = False  # whether the command, not the source, names the file

    @cached_property
    def content(self) -> tuple[Sequence[Scalar], Sequence[Section]]:
        """The values and the sections of the file; empty if it cannot be read as YAML."""
        root = _composed(self.source.text)
        found = list(_walk(root, self.group, self.source.text)) if root is not None else []
        return [x for x in found if isinstance(x, Scalar)], [x for x in found if isinstance(x, Section)]


@dataclass(frozen=True, kw_only=True)
class ConfigChange:
    """A range of a file's text, and the text that replaces it."""

    start: int
    end: int
    text: str


def configs_of(sources: Sequence[SourceFile], command: Sequence[str], cwd: Path) -> list[ConfigFile]:
    """Read the configuration files that a program names.

    Args:
        sources: The Python files of the program.
        command: The command that starts the program.
        cwd: The folder in which the program runs.
    """
    found: dict[Path, ConfigFile] = {}
    for one in [*_of_hydra(sources, command, cwd), *_named(sources, command, cwd)]:
        if len(found) < _MOST:
            found.setdefault((cwd / one.source.path).resolve(), one)
    return list(found.values())


def with_changes(source: SourceFile, changes: Iterable[ConfigChange]) -> SourceFile:
    """Return a file with parts of its text replaced."""
    text = source.text
    for one in sorted({(c.start, c.end, c.text) for c in changes}, reverse=True):
        text = text[: one[0]] + one[2] + text[one[1] :]
    return replace(source, text=text)


def in_yaml(value: object) -> str:
    """Return a value as text for YAML and JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(sources: Sequence[SourceFile], command: Sequence[str], cwd: Path) -> Iterator[ConfigFile]:
    """Yield the configuration files whose paths are words of the command or strings in the sources."""
    given = {part for word in command for part in (word, word.partition("=")[2])}
    words = [(cwd, part) for part in sorted(given)]
    words += [(cwd / s.path.parent, word) for s in sources for word in _QUOTED.findall(s.text)]
    for folder, word in words:
        if word.endswith(_SUFFIXES):
            for path in (cwd / word, folder / word):
                found = _read(path, cwd)
                if found is not None:
                    yield ConfigFile(found, is_chosen=word in given)


def _of_hydra(sources: Sequence[SourceFile], command: Sequence[str], cwd: Path) -> Iterator[ConfigFile]:
    """Yield the files from which Hydra composes the program's configuration."""
    for source in sources:
        for given in _HYDRA.findall(source.text):
            said = dict(re.findall(r"(config_path|config_name)\s*=\s*[\"']([^\"']+)[\"']", given))
            folder = (cwd / source.path).parent / said.get("config_path", "")
            name = _chosen(command, "--config-name") or said.get("config_name", "")
            if name:
                yield from _with_defaults(folder, name.removesuffix(".yaml"), (), command, cwd)


def _with_defaults(
    folder: Path, name: str, group: tuple[str, ...], command: Sequence[str], cwd: Path, depth: int = 0
) -> Iterator[ConfigFile]:
    source = _read(folder.joinpath(*group, f"{name}.yaml"), cwd)
    if source is None or depth > 8:
        return
    is_global = re.match(r"\s*#\s*@package\s+_global_", source.text) is not None
    yield ConfigFile(source, () if is_global else group)
    for part, choice in _defaults(source.text):
        inner = (*group, *part.split("/")) if not part.startswith("/") else tuple(part.strip("/").split("/"))
        chosen = _chosen(command, "/".join(inner)) or choice
        yield from _with_defaults(folder, chosen, inner if part else group, command, cwd, depth + 1)


def _defaults(text: str) -> list[tuple[str, str]]:
    """Return the groups and choices of Hydra's list ``defaults``."""
    block = re.search(r"^defaults:[ \t]*\n((?:[ \t]*(?:#.*)?\n|[ \t]*-.*\n?)*)", text, re.MULTILINE)
    lines = re.findall(r"^\s*-\s*(?:override\s+)?([^#\n]+)", block[1], re.MULTILINE) if block else []
    parts = [line.strip().partition(":") for line in lines if not line.strip().startswith("_self_")]
    found = [(one[0].partition("@")[0].strip(), one[2].strip()) if one[1] else ("", one[0].strip()) for one in parts]
    return [(group, choice.strip("\"'")) for group, choice in found if choice not in ("", "null", "???")]


def _chosen(command: Sequence[str], name: str) -> str | None:
    """Return the value that a command sets for an option or a Hydra group; None if it sets none."""
    for place, word in enumerate(command):
        if word.startswith((f"{name}=", f"+{name}=")):
            return word.partition("=")[2]
        if word == name and name.startswith("-") and place + 1 < len(command):
            return command[place + 1]
    return None


def _read(path: Path, cwd: Path) -> SourceFile | None:
    """Return a file in the working directory; None if it does not exist, is too large or is not text."""
    try:
        inside = path.resolve().is_relative_to(cwd.resolve())
        if not inside or not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        text = path.read_bytes().decode()
    except (OSError, ValueError):
        return None
    return SourceFile(path=Path(os.path.relpath(path.resolve(), cwd.resolve())), text=text)


def _composed(text: str) -> Any:
    """Return the syntax tree of a YAML or JSON text; None if PyYAML is missing or the text is not valid."""
    if find_spec("yaml") is None:
        return None
    yaml = import_module("yaml")
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return None


def _walk(node: Any, keys: tuple[str, ...], text: str) -> Iterator[Scalar | Section]:
    """Yield every value and every section of a YAML document."""
    if node.id == "scalar":
        start, end = node.start_mark.index, node.end_mark.index
        yield Scalar(keys=keys, text=text[start:end], start=start, end=end, line=node.start_mark.line + 1)
    elif node.id == "sequence":
        for number, one in enumerate(node.value):
            yield from _walk(one, (*keys, str(number)), text)
    elif node.value:
        yield _section(node, keys, text)
        for key, value in node.value:
            yield from _walk(value, (*keys, *str(key.value).split(".")), text)


def _section(node: Any, keys: tuple[str, ...], text: str) -> Section:
    first, last = node.value[0][0], node.value[-1][1]
    quote = '"' if text[first.start_mark.index] == '"' else ""
    names = frozenset(str(key.value) for key, _ in node.value)
    line = node.start_mark.line + 1
    if node.flow_style:
        between = text[last.start_mark.index : node.end_mark.index]
        broken = "\n" + " " * first.start_mark.column if "\n" in between else " "
        form = f",{broken}{quote}{{key}}{quote}: {{value}}"
        return Section(keys=keys, names=names, at=last.end_mark.index, form=form, line=line)
    end = last.end_mark.index
    stop = text.find("\n", end) if last.id == "scalar" or last.flow_style else len(text[:end].rstrip())
    at = len(text) if stop < 0 else stop
    form = f"\n{' ' * first.start_mark.column}{quote}{{key}}{quote}: {{value}}"
    return Section(keys=keys, names=names, at=at, form=form, line=line)
