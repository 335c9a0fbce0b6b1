"""Do the rooms stay apart at run time too?

The layers themselves are import-linter contracts (pyproject.toml). Here is what a contract cannot say:
that no path of the command line loads torch, and that the probe needs nothing but Python and torch.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
PACKAGE = SRC / "paceline"

TORCH_ROOMS = (
    "data",
    "endure",
    "inprocess",
    "plan/calibrate/benchmark_models",
    "plan/calibrate/measure",
    "plan/models/factory",
    "train",
)
PROBE_MAY_IMPORT = ("paceline.inprocess", "paceline.record.layout", "torch")
ALSO_ALLOWED = {  # modules of ours that need nothing but the standard library
    "paceline.inprocess.side_stream": ("paceline.core.forks",),
    "paceline.inprocess.settings.seeds": ("numpy",),  # where the program has imported it
    "paceline.inprocess.settings.cache": ("paceline.hardware.operating_system", "paceline.hardware.host"),
}

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def python(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that knows the source tree and nothing of this one."""
    code = f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}"
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False)


def dotted(path: Path) -> str:
    """The import name of a file under src/."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


def in_torch_room(path: Path) -> bool:
    return path.relative_to(PACKAGE).as_posix().startswith(TORCH_ROOMS)


def torch_free_modules() -> list[str]:
    """Names of all modules outside the rooms that may use torch; what is injected is no module."""
    return [
        dotted(path)
        for path in sorted(PACKAGE.rglob("*.py"))
        if not in_torch_room(path) and path.name != "__main__.py" and (path.parent / "__init__.py").exists()
    ]


def test_the_command_line_does_not_import_torch():
    result = python("import paceline.cli; print('torch' in sys.modules)")
    assert (result.stdout.strip(), result.stderr) == ("False", "")


def test_help_works_without_torch():
    run = "import runpy; sys.argv = ['paceline', '--help']; runpy.run_module('paceline', run_name='__main__')"
    result = python(WITHOUT_TORCH + run)
    assert result.returncode == 0, result.stderr
    assert "Usage" in result.stdout


def test_rooms_without_torch_import_without_torch():
    names = torch_free_modules()
    result = python(f"{WITHOUT_TORCH}import importlib\nfor name in {names!r}: importlib.import_module(name)")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "module", ["paceline.record.layout", "paceline.inprocess", "paceline.hardware.host", "paceline.core.forks"]
)
def test_the_way_into_a_program_needs_no_package(module):
    """The watched program's environment may have none of our dependencies (-S: no site-packages)."""
    result = python(f"import {module}", "-S")
    assert result.returncode == 0, result.stderr


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    """The full name of the module that a ``from`` import names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parents = parts[: len(parts) - node.level + is_package]
    return ".".join([*parents, *filter(None, [node.module])])


def imports_from(node: ast.ImportFrom, module: str, is_package: bool) -> list[str]:
    """What a ``from`` import loads; a name taken from a bare package of ours may itself be a module."""
    source = absolute(node, module, is_package)
    if source.startswith("paceline"):
        return [f"{source}.{alias.name}" for alias in node.names]
    return [source]


def imported(path: Path) -> Iterator[str]:
    """Names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from imports_from(node, dotted(path), path.name == "__init__.py")


def is_allowed(name: str, allowed: tuple[str, ...]) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    return any(name == room or name.startswith(f"{room}.") for room in allowed)


def inside_the_program() -> list[Path]:
    """The files that run in the user's process."""
    return sorted([*(PACKAGE / "inprocess").rglob("*.py"), PACKAGE / "record" / "layout.py"])


@pytest.mark.parametrize("path", inside_the_program(), ids=dotted)
def test_the_probe_imports_only_python_and_torch(path):
    allowed = (*PROBE_MAY_IMPORT, *ALSO_ALLOWED.get(dotted(path), ()))
    assert [name for name in imported(path) if not is_allowed(name, allowed)] == []


def injected() -> list[Path]:
    return sorted((PACKAGE / "inprocess" / "inject").rglob("*.py"))


@pytest.mark.parametrize("path", injected(), ids=lambda path: path.name)
def test_the_injected_file_pulls_in_only_the_probe(path):
    """It runs in every Python process below the watched command, most of which never see torch."""
    assert [name for name in imported(path) if not is_allowed(name, PROBE_MAY_IMPORT[:2])] == []
