"""Run the commands of a documentation page and write their output into the page.

    python tools/run_page.py docs/tutorial.md            # run every marked block, then rewrite the page
    python tools/run_page.py --check docs/tutorial.md    # run nothing; exit 1 if a block was edited by hand

A block is a fenced ``console`` block below a mark. Lines that begin with ``$ `` are commands; all other lines are
output and are replaced:

    <!-- run -->
    ```console
    $ paceline run train.py
    ```

A mark takes two options: ``exit=1`` for a command that must end with that code, and ``lines=12`` to keep only the
first lines of the output. The script adds ``made=`` with a checksum of the block, so that a later edit by hand is
noticed. ``<!-- runs in examples/photos after python make_photos.py -->`` names the folder whose scratch copy the
commands run in, one after the other, and a command to run there first, unseen. The text between ``<!-- machine -->``
and ``<!-- /machine -->`` becomes the machine and the date.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _example import ROOT, environment, hide_paths, scratch_copy, warn_if_busy

sys.path.insert(0, str(ROOT / "benchmarks"))
from _machine import about  # noqa: E402

FENCE = re.compile(r"(?:^<!-- run(?P<options>[^\n]*?) -->\n)?^```console\n(?P<body>.*?)^```$", re.M | re.S)
FOLDER = re.compile(r"^<!-- runs in (\S+)(?: after ([^\n]+))? -->$", re.M)
MACHINE = re.compile(r"(<!-- machine -->).*?(<!-- /machine -->)", re.S)
PROMPT = "$ "
LIMIT_S = 900.0
MOST_COLUMNS = "120"


class PageError(Exception):
    """A page cannot be run, or a command of it did not end as the page says."""


@dataclass(frozen=True)
class Block:
    """One ``console`` block of a page."""

    body: str
    options: dict[str, str] | None  # None: the block has no mark

    @property
    def commands(self) -> list[str]:
        """The command lines, without the prompt; a line that ends with a backslash goes on."""
        lines = self.body.replace("\\\n", "\\\0").splitlines()
        return [line.removeprefix(PROMPT).replace("\\\0", "\\\n") for line in lines if line.startswith(PROMPT)]

    def text(self) -> str:
        """Return the block as it stands in the page, with the checksum of its body."""
        options = {**(self.options or {}), "made": checksum(self.body)}
        words = " ".join(f"{key}={value}" for key, value in options.items())
        return f"<!-- run {words} -->\n```console\n{self.body}```"


def checksum(body: str) -> str:
    """Return a short checksum of a block's commands and output."""
    return hashlib.sha256(body.encode()).hexdigest()[:12]


def block_of(match: re.Match[str]) -> Block:
    """Return the block that a match of ``FENCE`` stands for."""
    options = match["options"]
    pairs = None if options is None else dict(word.partition("=")[::2] for word in options.split())
    return Block(body=match["body"], options=pairs)


def blocks_of(page: str) -> list[Block]:
    """Return all ``console`` blocks of a page, in order."""
    return [block_of(match) for match in FENCE.finditer(page)]


def folder_of(page: str) -> tuple[str, str | None]:
    """Return the folder that the page's commands run in, and the command to run there first.

    Raises:
        PageError: The page names none.
    """
    found = FOLDER.search(page)
    if not found:
        raise PageError("the page has no line `<!-- runs in FOLDER -->`")
    return found[1], found[2]


def faults(page: str) -> list[str]:
    """Return a sentence for each block that was not written by this script, in its present form."""
    found = []
    for number, block in enumerate(blocks_of(page), 1):
        first = (block.commands or ["no command"])[0]
        if block.options is None:
            found.append(f"block {number} ({first}) has no mark `<!-- run -->`")
        elif "made" not in block.options:
            found.append(f"block {number} ({first}) was never run")
        elif block.options["made"] != checksum(block.body):
            found.append(f"block {number} ({first}) was edited by hand after it was run")
    return found


def run_page(page: str) -> str:
    """Run the marked blocks of a page in order and return the page with their output.

    Raises:
        PageError: A command ended with another exit code than its mark says, or its output cannot stand in a block.
    """
    folder, first = folder_of(page)
    warn_if_busy()
    with scratch_copy(folder) as copy:
        if first:
            _run_command(first, 0, copy)
        page = FENCE.sub(lambda match: _run_block(block_of(match), match[0], copy, folder), page)
    known = about([])
    return MACHINE.sub(lambda match: f"{match[1]}{known['device']}, {known['date']}{match[2]}", page)


def _run_block(block: Block, as_it_was: str, copy: Path, folder: str) -> str:
    """Run one block and return its new text; a block without a mark stays as it was."""
    if block.options is None:
        return as_it_was
    body = ""
    for command in block.commands:
        output = _run_command(command, int(block.options.get("exit", "0")), copy)
        output = _first_lines(hide_paths(output, copy, folder), block.options.get("lines"))
        if re.search(r"^(?:```|\$ )", output, re.M):
            raise PageError(f"`{command}` prints a fence or a prompt, which a console block cannot hold:\n{output}")
        body += f"{PROMPT}{command}\n{output}"
    return Block(body=body, options=block.options).text()


def _run_command(command: str, expected: int, copy: Path) -> str:
    """Run one command as typed, and return what it printed on both streams."""
    print(f"run_page: {command}", file=sys.stderr, flush=True)
    begin = time.monotonic()
    env = environment(copy, NO_COLOR="1", COLUMNS=MOST_COLUMNS, PYTHONUNBUFFERED="1")
    done = subprocess.run(
        ["bash", "-c", command], cwd=copy, env=env, text=True, timeout=LIMIT_S, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    print(f"run_page: exit code {done.returncode} after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    if done.returncode != expected:
        raise PageError(f"`{command}` ended with exit code {done.returncode}, expected {expected}:\n{done.stdout}")
    return done.stdout if done.stdout.endswith("\n") or not done.stdout else done.stdout + "\n"


def _first_lines(output: str, limit: str | None) -> str:
    """Return the first lines of an output, and ``...`` where lines were left out."""
    lines = output.splitlines(keepends=True)
    if limit is None or len(lines) <= int(limit):
        return output
    return "".join(lines[: int(limit)]) + "...\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or check pages; return the exit code."""
    parser = argparse.ArgumentParser(description="Run the commands of a page and write their output into it.")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--check", action="store_true", help="run nothing; exit 1 if a block was edited by hand")
    options = parser.parse_args(arguments)
    wrong = 0
    for path in options.pages:
        page = path.read_text(encoding="utf-8")
        if options.check:
            found = faults(page)
            print("".join(f"{path}: {sentence}\n" for sentence in found), end="")
            wrong += len(found)
        else:
            path.write_text(run_page(page), encoding="utf-8")
    return min(wrong, 1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PageError as error:
        sys.exit(f"run_page: {error}")
