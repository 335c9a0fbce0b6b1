"""The options for output files that verbs share; `-` is stdout."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import click

from paceline.core.errors import UsageError

PAGES = Path(".paceline/pages")  # of `--open` without `--html FILE`
STDOUT = Path("-")
_KEPT_STDOUT = "paceline.stdout"  # in the meta data of click's context


class OutputFile(click.Path):
    """A file to write text to; `-` means stdout where the type allows it."""

    def __init__(self, *, stdout: bool = True) -> None:
        super().__init__(path_type=Path, allow_dash=stdout)
        self.stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if str(value) == "-" and not self.stdout:
            self.fail("this result cannot be written to stdout; give the name of a file", param, ctx)
        if str(value) == "":
            self.fail("the name of the file is empty; give the name of a file", param, ctx)
        return super().convert(value, param, ctx)


FILE = OutputFile()
FILE_ONLY = OutputFile(stdout=False)

to_json = click.option(
    "--json", "json_file", type=FILE, metavar="FILE", help="Write the result as JSON to FILE. The name - means stdout."
)
to_markdown = click.option(
    "--markdown",
    type=FILE,
    metavar="FILE",
    help="Write the result as Markdown to FILE, for example for a pull request.",
)
to_html = click.option("--html", type=FILE, metavar="FILE", help="Write the report to FILE, as one HTML file.")
to_open = click.option("--open", "open_page", is_flag=True, help="Open the report in the web browser.")


@contextmanager
def text_results_on_stderr(ctx: click.Context) -> Iterator[None]:
    """Where an option sends a result to stdout, send all other text of the verb to stderr meanwhile."""
    outputs = {str(param.name) for param in ctx.command.params if isinstance(param.type, OutputFile)}
    if not any(ctx.params.get(name) == STDOUT for name in outputs):
        yield
        return
    ctx.meta[_KEPT_STDOUT] = sys.stdout
    with redirect_stdout(sys.stderr):
        yield


def write_to_stdout(text: str) -> None:
    """Write a result to the stdout of the command line."""
    ctx = click.get_current_context(silent=True)
    kept: TextIO | None = None if ctx is None else ctx.meta.get(_KEPT_STDOUT)
    print(text, end="", file=kept or sys.stdout, flush=True)


def opens_page(verb: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add ``--open`` to a verb that writes a page with ``--html FILE``; without FILE the page goes to `PAGES`.

    Args:
        verb: The name of the verb, and of its page.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def opening(*arguments: Any, **options: Any) -> int:
            if not options.pop("open_page"):
                return command(*arguments, **options)
            page = options["html"] = options["html"] or _page_of(verb)
            if page == STDOUT:
                return command(*arguments, **options)
            before = _written_ns(page)
            exit_code = command(*arguments, **options)
            if _written_ns(page) != before:
                open_page(page)
            return exit_code

        return click.option("--open", "open_page", is_flag=True, help="Open the HTML report in the web browser.")(
            opening
        )

    return decorate


def _page_of(verb: str) -> Path:
    """Return the page of a verb that was given no file, in a folder that exists."""
    try:
        PAGES.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {PAGES}: {error.strerror}; name the page with --html FILE") from error
    return PAGES / f"{verb}.html"


def _written_ns(page: Path) -> int | None:
    """Return when a file was last written; None where there is none."""
    try:
        return page.stat().st_mtime_ns
    except OSError:
        return None


def open_page(page: Path | None) -> None:
    """Open a page in the browser that Python's `webbrowser` finds, or say in one line that there is none."""
    import webbrowser

    if page is None:
        return
    try:
        opened = webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    if not opened:
        click.echo(f"paceline: no web browser could be started here; the HTML report is in {page}", err=True)


def check_writable(*paths: Path | None) -> None:
    """Check before the work, which may take hours, that every result can be written.

    Raises:
        UsageError: A path is a folder, may not be written, or is named twice.
    """
    given = [path for path in paths if path is not None]
    twice = [path for path, count in Counter(path.resolve() for path in given).items() if count > 1]
    if twice:
        where = "stdout" if STDOUT in given and twice[0] == STDOUT.resolve() else str(twice[0])
        raise UsageError(f"cannot write two results to {where}; give each result its own file")
    for path in given:
        if path != STDOUT:
            _check_writable(path)


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; give the name of a file in this folder")
    if not path.parent.is_dir():
        raise UsageError(
            f"cannot write {path}: there is no folder {path.parent}; create this folder, or give a file "
            f"in another folder"
        )
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"cannot write {path}: the file or its folder is read-only; give a file in another folder")
