"""Where does a verb write its result? The options that all verbs share."""

from __future__ import annotations

from pathlib import Path

import click

_FILE = click.Path(path_type=Path)

to_json = click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write the result as JSON.")
to_markdown = click.option("--markdown", type=_FILE, metavar="FILE", help="Write it for a pull request.")
to_html = click.option("--html", type=_FILE, metavar="FILE", help="Write the report here too.")
