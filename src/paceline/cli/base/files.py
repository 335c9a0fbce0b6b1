"""Options for output files that several commands share; `-` is stdout."""

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

PAGES = Path(".paceline/pages")  # folder for pages of `--open` without `--html FILE`
STDOUT = Path("-")
_KEPT_STDOUT = "paceline.stdout"  # key in the metadata of click's context


class OutputFile(click.Path):
    """A parameter type for output files; `-` means stdout if the type allows it."""

    def __init__(self, *, stdout: bool = True) -> None:
        super().__init__(path_type=Path, allow_dash=stdout)
        self.stdout = stdout

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail if the name is empty, or `-` where stdout is not allowed."""
        if str(value) == "-" and not self.stdout:
            self.fail("this result cannot be written to stdout; give the name of a file", param, ctx)
        if str(value) == "":
            self.fail("the name of the file is empty; give the name of a file", param, ctx)
        return super().convert(value, param, ctx)


class DataPath(click.Path):
    """A parameter type for data sets: a local path, or, if the command supports it, the URL of an object store."""

    def __init__(self, *, stores: bool = True) -> None:
        super().__init__()
        self.stores = stores

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path without ``file://``, or fail if it is a URL and the command needs a local path."""
        from paceline.data.format.folders import is_url, local_name
        from paceline.data.remote.secrets import shown_url

        if is_url(value) and not self.stores:
            self.fail(
                f"{shown_url(value)} is in an object store; this command needs a path on this machine", param, ctx
            )
        return local_name(value) if self.stores else Path(local_name(value))


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
    """While the command runs, send all other text to stderr if an option sends a result to stdout."""
    outputs = {str(param.name) for param in ctx.command.params if isinstance(param.type, OutputFile)}
    if not any(ctx.params.get(name) == STDOUT for name in outputs):
        yield
        return
    ctx.meta[_KEPT_STDOUT] = sys.stdout
    with redirect_stdout(sys.stderr):
        yield


def write_to_stdout(text: str) -> None:
    """Write a result to the original stdout of the command line."""
    ctx = click.get_current_context(silent=True)
    kept: TextIO | None = None if ctx is None else ctx.meta.get(_KEPT_STDOUT)
    print(text, end="", file=kept or sys.stdout, flush=True)


def opens_page(verb: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add ``--open`` to a command with ``--html FILE``; without ``--html``, the opened page is written to `PAGES`.

    Args:
        verb: The name of the command, from which the page gets its name.
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
    """Return the path of a command's page in `PAGES`, and create that folder."""
    try:
        PAGES.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {PAGES}: {error.strerror}; name the page with --html FILE") from error
    return PAGES / f"{verb}.html"


def _written_ns(page: Path) -> int | None:
    """Return the time at which a file was last written, in nanoseconds; None if the file does not exist."""
    try:
        return page.stat().st_mtime_ns
    except OSError:
        return None


def open_page(page: Path | None) -> None:
    """Open a page in a web browser; if no browser can be opened, print one line that says so."""
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
    """Check before work that can take hours that every result can be written.

    Raises:
        UsageError: A path is a folder, is not writable, or is given twice.
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
