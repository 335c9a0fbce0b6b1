"""Finds the source files of a program: the script that a command starts, and the local modules that it imports."""

from __future__ import annotations

import ast
import io
import os
import shlex
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paceline.core.errors import UsageError
from paceline.tune.patches.model import SourceFile

_MODULE = ("-m", "--module")
_INSTALLED = ("site-packages", "dist-packages")
_MOST = 300  # files


def sources_of(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> list[SourceFile]:
    """Return the sources of a program, the script first.

    Args:
        command: The command that starts the program, such as ``["torchrun", "--nproc-per-node", "4", "train.py"]``.
        cwd: The folder in which the command is started.
        environment: The environment variables of the command; only ``PYTHONPATH`` is used.

    Raises:
        UsageError: The command names no Python file of the user's, or one that is not valid Python.
    """
    script, roots = _script(command, cwd, environment)
    found: dict[Path, SourceFile] = {}
    left = [script]
    while left and len(found) < _MOST:
        path = left.pop(0)
        source = _read(path, cwd, is_script=path == script)
        if source is not None and path not in found:
            found[path] = source
            left += [one for one in _imported(ast.parse(source.text), path, roots) if one not in found]
    return list(found.values())


def _script(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> tuple[Path, list[Path]]:
    """Return the script that a command starts, and the folders from which the script can import the user's modules."""
    beside = [cwd / part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    if (cwd / "pyproject.toml").exists() or (cwd / "setup.py").exists():
        beside += [cwd, cwd / "src"]
    roots = [root.resolve() for root in beside if root.resolve().is_relative_to(cwd.resolve())]
    for place, word in enumerate(command):
        if word in _MODULE and place + 1 < len(command):
            own = [cwd.resolve(), *roots]
            found = _module(command[place + 1].split("."), own)
        else:
            found = _file(cwd / word)
            own = [found.parent, *roots] if found is not None else []
        if found is not None:
            return found, own
    raise UsageError(
        f"Paceline found no Python script of your program in `{shlex.join(command)}`; name the script: "
        f"paceline tune --diff train.py"
    )


def _file(path: Path) -> Path | None:
    """Return the Python file that a path names: the file itself, or ``__main__.py`` of a folder; None for others."""
    path = path / "__main__.py" if path.is_dir() else path
    found = path.suffix in (".py", ".pyw") and path.is_file() and not _installed(path)
    return path.resolve() if found else None


def _module(parts: Sequence[str], roots: Sequence[Path]) -> Path | None:
    """Return the file that ``python -m`` runs for a dotted name; for a package, ``__main__.py``. None if not found."""
    path = _find(parts, roots)
    return path if path is None or path.name != "__init__.py" else _file(path.parent)


def _find(parts: Sequence[str], roots: Sequence[Path]) -> Path | None:
    for root in roots:
        for path in (root.joinpath(*parts).with_suffix(".py"), root.joinpath(*parts, "__init__.py")):
            if path.is_file() and not _installed(path):
                return path.resolve()
    return None


def _installed(path: Path) -> bool:
    """Return whether a file belongs to an environment or to Python itself, and not to the user."""
    path = path.resolve()
    if set(path.parts).intersection(_INSTALLED) or path.is_relative_to(sysconfig.get_path("stdlib")):
        return True
    return any((folder / "pyvenv.cfg").exists() for folder in path.parents)


def _read(path: Path, cwd: Path, *, is_script: bool) -> SourceFile | None:
    """Return a source file; None if it is not readable Python.

    Raises:
        UsageError: The file is the script, and is not readable Python.
    """
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
        ast.parse(text)
    except (OSError, SyntaxError, ValueError) as error:
        if is_script:
            raise UsageError(f"{path} cannot be read as Python: {error}") from error
        return None
    return SourceFile(path=Path(os.path.relpath(path, cwd)), text=text, encoding=encoding, is_script=is_script)


def _imported(tree: ast.Module, path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of the user that a file imports."""
    for node in ast.walk(tree):
        for parts, folders in _names(node, path, roots):
            for length in range(1, len(parts) + 1):
                found = _find(parts[:length], folders)
                if found is not None:
                    yield found


def _names(node: ast.AST, path: Path, roots: Sequence[Path]) -> Iterator[tuple[list[str], Sequence[Path]]]:
    """Yield the dotted names that a statement imports, each with the folders to search."""
    if isinstance(node, ast.Import):
        yield from ((alias.name.split("."), roots) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        folders = [path.parents[node.level - 1]] if 0 < node.level <= len(path.parents) else roots
        start = node.module.split(".") if node.module else []
        yield from (([*start, alias.name], folders) for alias in node.names)
