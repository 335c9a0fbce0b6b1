"""The part of ``paceline data convert`` that converts text to tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from paceline.cli.base.progress import Progress
from paceline.core.errors import UsageError
from paceline.report.words import count

_SHOWN = 8
_NOT_OF_TEXT = {
    "seed": "the loader mixes windows of tokens with shuffle=True",
    "no_shuffle": "text keeps its order anyway",
    "verbatim": "this option is about JPEG files",
    "dataset": "give the text as SRC",
    "columns": "this option is about --dataset",
    "images": "this option is about --dataset",
    "classes_from": "text has no classes",
}


def is_text(paths: Sequence[Path], options: Mapping[str, Any]) -> bool:
    """Return whether the source is text, because of its file name, the option for its kind, or a given tokenizer."""
    if options["tokenizer"] is not None or options["kind"] == "text":
        return True
    if options["kind"] is not None:
        return False
    name = paths[0].name.lower().removesuffix(".gz")
    return paths[0].is_file() and name.endswith((".txt", ".md", ".jsonl", ".ndjson"))


def tell_skipped(skipped: Sequence[str], shown_dest: str) -> None:
    """Print the names of the first skipped samples, and of the file that lists all of them."""
    from paceline.data.convert.skipped_samples import SKIPPED_FILE

    for text in skipped[:_SHOWN]:
        click.echo(f"paceline: skipped {text}", err=True)
    if skipped:
        listed = f"{shown_dest.rstrip('/')}/{SKIPPED_FILE}"
        click.echo(f"paceline: {count(len(skipped), 'sample')} skipped, all listed in {listed}", err=True)


def convert_text(paths: tuple[Path, ...], shown_dest: str, options: Mapping[str, Any], given: Sequence[str]) -> None:
    """Convert text to tokens.

    Args:
        paths: SRC and DEST.
        shown_dest: DEST as it is shown in messages.
        options: The options of the command.
        given: The names of the options on the command line.
    """
    from paceline.data.convert.skipped_samples import read_skipped
    from paceline.data.convert.token_shards import write_tokens
    from paceline.data.format.model import shown
    from paceline.data.sources.text import TextOptions, documents, fingerprint, has_records, notes, tokenizer_of

    tokenizer, field = options["tokenizer"], options["text_field"]
    for name in given:
        if name in _NOT_OF_TEXT:
            raise UsageError(f"--{name.replace('_', '-')} has no effect on text: {_NOT_OF_TEXT[name]}; leave it out")
    if not paths[0].exists():
        raise UsageError(f"there is no file or folder {paths[0]}; give the text to convert as SRC")
    if tokenizer is None:
        raise UsageError(
            f"{paths[0]} is text, and text needs a tokenizer; give --tokenizer bytes or --tokenizer tokenizer.json, or "
            "--format jsonl for JSON lines whose fields are columns"
        )
    if "text_field" in given and not has_records(paths[0]):
        raise UsageError(f"--text-field has no effect: {paths[0]} has no JSON, CSV or Parquet; leave it out")
    if options["processes"] is not None:
        os.environ["RAYON_NUM_THREADS"] = str(options["processes"])  # number of threads that a tokenizer.json uses
    for text in notes(paths[0]):
        click.echo(f"paceline: {text}", err=True)
    own, skipped = tokenizer_of(tokenizer), list[str]()
    if own.note:
        click.echo(f"paceline: {own.note}", err=True)
    bad = skipped.append if options["on_error"] == "skip" else None
    how = TextOptions(text_field=field, cuts=own.cuts, bad=bad)
    with Progress("bytes") as progress:
        texts = documents(paths[0], progress, how)
        shard_tokens = int(options["shard_mb"] * (1 << 20)) // (2 if own.vocabulary <= 1 << 16 else 4)

        def mark() -> str:
            return fingerprint(paths[0], tokenizer, field)

        made = write_tokens(paths[1], texts, own, shard_tokens, mark, skipped)
    if how.other_fields:
        more = ", ..." * (len(how.other_fields) > _SHOWN)
        named = ", ".join(map(shown, sorted(how.other_fields)[:_SHOWN]))
        click.echo(f"paceline: only {field} is converted; other fields are not: {named}{more}", err=True)
    skipped = read_skipped(paths[1])  # of an earlier command too, if it was killed at its very end
    tell_skipped(skipped, shown_dest)
    bad_ones = f", {len(skipped):,} skipped" if skipped else ""
    click.echo(
        f"{made.tokens:,} tokens of {count(made.documents, 'document')}, ids below {made.vocabulary:,}, "
        f"{made.dtype}, in {count(len(made.shards), 'file')}{bad_ones}: {shown_dest}"
    )
    click.echo(f"paceline: next: paceline data bench {shown_dest} --length 1024", err=True)
