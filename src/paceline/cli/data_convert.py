"""``paceline data convert``: a data set as it is, into shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import units
from paceline.cli.progress import Bar
from paceline.errors import UsageError
from paceline.report.words import count

if TYPE_CHECKING:
    from paceline.data.sources import Source

_FOLDER = click.Path(path_type=Path)
FORMATS = ("images", "table", "webdataset", "tfrecord", "parquet", "hdf5", "npy", "text")


@click.command(name="convert", short_help="Convert a folder of pictures, or any Dataset, into shards.")
@click.option("--format", "kind", type=click.Choice(FORMATS), help="What SRC is, where its name does not say.")
@click.option("--dataset", metavar="MODULE:NAME", help="Convert this Python Dataset; SRC is left out.")
@click.option("--columns", metavar="A,B,...", help="What the parts of its samples are to be called.")
@click.option("--tokenizer", metavar="bytes|FILE", help="Make text into tokens: of its bytes, or by a tokenizer.json.")
@click.option(
    "--shard-mb", type=click.FloatRange(0, min_open=True), default=128, show_default=True, help="Size of a shard."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order in which samples are mixed.")
@click.option("--no-shuffle", is_flag=True, help="Leave samples in their order.")
@click.option("--verbatim", is_flag=True, help="Leave JPEGs as they are, byte by byte.")
@click.option(
    "--on-error", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
    help="What to do with a sample that cannot be read.",
)  # fmt: skip
@click.option("--processes", type=click.IntRange(1), metavar="N", help="That convert side by side; default: the cores.")
@click.argument("paths", nargs=-1, required=True, type=_FOLDER, metavar="SRC DEST")
def command(paths: tuple[Path, ...], **options: Any) -> int:
    """Convert a data set into shards: tars that any tool reads, with an index beside each.

    SRC is a folder with a folder of pictures for each class, a CSV file of paths and labels, or a file or folder of
    tars as WebDataset has them, TFRecord, Parquet, HDF5, .npy, or text. JPEGs get restart markers, by which a crop
    decodes only what it needs; no pixel changes. An interrupted conversion goes on where it was.

    \b
    paceline data convert photos/ shards/
    paceline data convert labels.csv shards/
    paceline data convert --dataset my_data:train_set shards/
    paceline data convert corpus.jsonl tokens/ --tokenizer tokenizer.json
    """
    from paceline.data.convert import Options, convert, cores
    from paceline.data.sources import BadSample

    if options["tokenizer"] is not None or options["kind"] == "text" or _is_text(paths[0]):
        return _tokens(paths, options["tokenizer"])
    asked = Options(
        shard_bytes=int(options["shard_mb"] * (1 << 20)),
        seed=None if options["no_shuffle"] else options["seed"],
        verbatim=options["verbatim"],
        on_error=options["on_error"],
    )
    try:
        source, dest = _source(paths, options["dataset"], options["columns"], options["kind"])
        _warn(source, verbatim=asked.verbatim)
        with Bar("samples") as bar:
            made = convert(source, dest, asked, options["processes"] or cores(), bar)
    except BadSample as error:
        raise UsageError(f"{error}; mend it, or leave it out with --on-error skip") from error
    for text in made.skipped[:8]:
        click.echo(f"paceline: skipped {text}", err=True)
    contents = made.contents
    size = units.size(sum(shard.bytes for shard in contents.shards))
    skipped = f", {len(made.skipped):,} skipped" if made.skipped else ""
    resumed = f", {made.resumed:,} of them there already" if made.resumed else ""
    shards = count(len(contents.shards), "shard")
    click.echo(f"{count(contents.samples, 'sample')} in {shards}, {size}{skipped}{resumed}: {dest}")
    click.echo(f"paceline: next: paceline data bench {dest}", err=True)
    return 0


def _warn(source: Source, *, verbatim: bool) -> None:
    """Say what is probably not meant."""
    from paceline.data.lossless import jpegtran
    from paceline.data.model import shown
    from paceline.data.sources.image_folder import Pictures

    if not verbatim and jpegtran() is None and any(column.kind == "image" for column in source.columns):
        click.echo(
            "paceline: JPEGs stay as they are, and crops decode all of them: jpegtran is not installed "
            "(Debian and Ubuntu: apt install libjpeg-turbo-progs)",
            err=True,
        )
    if isinstance(source, Pictures) and (empty := source.empty_classes):
        named = ", ".join(map(shown, empty[:8])) + (", ..." if len(empty) > 8 else "")
        click.echo(f"paceline: folders without pictures have a label too, as in torchvision: {named}", err=True)


def _is_text(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".txt", ".md", ".jsonl")


def _tokens(paths: tuple[Path, ...], tokenizer: str | None) -> int:
    """Convert text."""
    from paceline.data.sources.text import documents, fingerprint, tokenizer_of
    from paceline.data.token_shards import write_tokens

    if len(paths) != 2:
        raise UsageError(f"give SRC and DEST, not {len(paths)} paths: {' '.join(map(str, paths))}")
    if not paths[0].exists():
        raise UsageError(f"no file or folder {paths[0]}")
    if tokenizer is None:
        raise UsageError(
            f"{paths[0]} is text: say how tokens are made, --tokenizer bytes or --tokenizer tokenizer.json"
        )
    own = tokenizer_of(tokenizer)
    made = write_tokens(paths[1], documents(paths[0]), own, mark=fingerprint(paths[0], tokenizer))
    click.echo(
        f"{made.tokens:,} tokens of {count(made.documents, 'document')}, ids below {made.vocabulary:,}, "
        f"{made.dtype}, in {count(len(made.shards), 'file')}: {paths[1]}"
    )
    click.echo(f"paceline: next: paceline data bench {paths[1]} --length 1024", err=True)
    return 0


def _source(paths: tuple[Path, ...], dataset: str | None, columns: str | None, kind: str | None) -> tuple[Source, Path]:
    """Return what to convert, and where to."""
    from paceline.data.sources.dataset import DatasetSource
    from paceline.data.sources.found import source_of

    if dataset is not None:
        if len(paths) != 1:
            raise UsageError(f"--dataset {dataset} takes the place of SRC; give DEST alone")
        names = tuple(columns.split(",")) if columns else ()
        return DatasetSource(dataset, names), paths[0]
    if len(paths) != 2:
        raise UsageError(f"give SRC and DEST, not {len(paths)} paths: {' '.join(map(str, paths))}")
    if columns is not None:
        raise UsageError("--columns names the parts of a --dataset; files name theirs themselves")
    folder, dest = paths
    source = source_of(folder, kind)
    if folder.is_dir() and dest.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{dest} is in {folder}: what is written would be a part of what is read; name a folder elsewhere"
        )
    return source, dest
