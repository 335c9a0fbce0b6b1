"""Where does a verb write its result? The options that all verbs share."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import click

from paceline.errors import UsageError

_FILE = click.Path(path_type=Path)

to_json = click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write the result as JSON.")
to_markdown = click.option("--markdown", type=_FILE, metavar="FILE", help="Write it for a pull request.")
to_html = click.option("--html", type=_FILE, metavar="FILE", help="Write the report here too.")


def check_writable(*paths: Path | None) -> None:
    """Find out before hours of training, not after, that a result could not be written.

    Raises:
        UsageError: A path is a folder, or may not be written, or is named twice.
    """
    twice = [path for path, count in Counter(path.resolve() for path in paths if path is not None).items() if count > 1]
    if twice:
        raise UsageError(f"cannot write two results to {twice[0]}; name a file for each")
    for path in paths:
        if path is None:
            continue
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
        if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise UsageError(f"cannot write {path}: its folder is missing or read-only; name a file elsewhere")
