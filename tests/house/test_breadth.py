"""Limits on the breadth of the package: how many places a reader must visit to understand one thing.

Each figure has a ceiling. A change may lower a figure and never raise it. `python tests/house/test_breadth.py` prints
the figures and what they count. Decision 0038 says what they are for.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "paceline"

MOST_MODULES = 20  # of a folder
TABLES = (
    "explain/rules",
    "inprocess/settings",
    "tune/remedies",
    "data/sources",
    "train/parallel",
    "launch/engines",
)  # a file for each row
ONE_IMPORTER = 185
ONE_LINERS = 238
SHARED_CLASS_NAMES = 1
UNCLEAR_NAMES = 1.4  # percent

# What names are not made of: docs/decisions/0038-packages.md has the field's words for them.
UNCLEAR_WORDS = frozenset(
    """
    crew automaton scribe moment gate weave tally shadow overlay kept weightless presence leftovers warden
    births child catch witness conducted held told confirmed roots again player workshop contest race
    kin proofs ledger situation facts supply played turns regret fits zoo animal here
    surface dealt chance reach spread gallery loose salvage graded house room
    """.split()  # noqa: SIM905
)

FIGURES = (
    "modules with one importer",
    "private functions with one caller and one statement",
    "class names of several classes",
    "names with an unclear word, percent",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; what is injected is no module."""
    files = (path for path in sorted(SRC.rglob("*.py")) if (path.parent / "__init__.py").exists())
    return {
        ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in files
    }


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def folder_sizes() -> dict[str, int]:
    """Modules of each folder, without ``__init__.py``."""
    paths = [path for path in modules().values() if path.name != "__init__.py"]
    return Counter(path.parent.relative_to(SRC).as_posix() for path in paths)


def imported(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules() else node.module for name in names)


def with_one_importer() -> dict[str, str]:
    """Modules that one other module alone imports, with that module."""
    importers = defaultdict(set)
    for name, path in modules().items():
        for other in imported(path):
            importers[other].add(name)
    return {name: min(by) for name, by in sorted(importers.items()) if len(by) == 1 and name in modules()}


def statements(node: Function) -> list[ast.stmt]:
    """The body of a function without its docstring."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def is_private(node: ast.stmt) -> bool:
    return isinstance(node, Function) and node.name.startswith("_") and not node.decorator_list


def one_liners() -> list[str]:
    """Private functions of a module with one statement that the module names once."""
    found = []
    for path in modules().values():
        uses = Counter(node.id for node in ast.walk(tree(path)) if isinstance(node, ast.Name))
        for node in tree(path).body:
            if is_private(node) and len(statements(node)) == 1 and uses[node.name] == 1:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return found


def shared_class_names() -> dict[str, list[str]]:
    """Names of classes that several modules define."""
    places = defaultdict(list)
    for name, path in modules().items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z]|_|$)|[A-Z]?[a-z]+", name)}


@cache
def names() -> list[str]:
    """Names of modules, classes and functions."""
    named = [name.rpartition(".")[2] for name in modules()]
    for path in modules().values():
        named += [node.name for node in ast.walk(tree(path)) if isinstance(node, Function | ast.ClassDef)]
    return named


def unclear_names() -> list[str]:
    return [name for name in names() if words_of(name) & UNCLEAR_WORDS]


def unclear_percent() -> float:
    return 100 * len(unclear_names()) / len(names())


@cache
def figures() -> dict[str, tuple[float, float]]:
    """Each figure with its ceiling."""
    measured = (len(with_one_importer()), len(one_liners()), len(shared_class_names()), round(unclear_percent(), 2))
    ceilings = (ONE_IMPORTER, ONE_LINERS, SHARED_CLASS_NAMES, UNCLEAR_NAMES)
    return dict(zip(FIGURES, zip(measured, ceilings)))


@pytest.mark.parametrize("figure", FIGURES)
def test_no_figure_rises(figure: str) -> None:
    measured, ceiling = figures()[figure]
    assert measured <= ceiling, f"{figure}: see `python tests/house/test_breadth.py`"


@pytest.mark.parametrize("figure", FIGURES)
def test_the_ceiling_follows_a_figure_that_falls(figure: str) -> None:
    measured, ceiling = figures()[figure]
    assert ceiling <= 1.1 * measured + 3, f"{figure}: lower its ceiling to {measured}"


def test_no_folder_gets_broader() -> None:
    assert {f: size for f, size in folder_sizes().items() if f not in TABLES and size > MOST_MODULES} == {}


def test_an_unclear_word_is_found_in_a_name() -> None:
    assert words_of("_HeldRows") == {"held", "rows"}
    assert words_of("find_GPU_clock") == {"find", "gpu", "clock"}
    assert words_of("_kept_rows") & UNCLEAR_WORDS


def main() -> None:
    """Print every figure, and what it counts."""
    for folder, size in sorted(folder_sizes().items(), key=lambda pair: -pair[1]):
        if size > MOST_MODULES and folder not in TABLES:
            print(f"    {folder!r}: {size},")
    for name, importer in with_one_importer().items():
        print(f"one importer: {name} <- {importer}")
    for each in one_liners():
        print(f"one caller and one statement: {each}")
    for name, where in shared_class_names().items():
        print(f"several classes {name}: {', '.join(where)}")
    print("unclear names:", ", ".join(sorted(set(unclear_names()))))
    for figure, (measured, ceiling) in figures().items():
        print(f"{figure}: {measured} (ceiling {ceiling})")


if __name__ == "__main__":
    main()
