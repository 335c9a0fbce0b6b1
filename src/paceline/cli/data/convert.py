"""``paceline data convert``: convert a data set into shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from paceline.cli.base.command import Command
from paceline.cli.base.files import DataPath
from paceline.cli.base.numbers import FiniteFloat
from paceline.cli.base.progress import Progress
from paceline.cli.data.convert_stores import local_paths
from paceline.cli.data.convert_text import convert_text, is_text, tell_skipped
from paceline.core import units
from paceline.core.errors import UsageError
from paceline.report.words import count

if TYPE_CHECKING:
    from paceline.data.sources import Source

_FOLDER = click.Path(path_type=Path)
_OF_FILES = ("images", "table", "coco", "webdataset", "tfrecord", "parquet", "arrow", "hdf5", "zarr", "npy")
FORMATS = (*_OF_FILES, "mds", "jsonl", "text")


@click.command(
    cls=Command,
    name="convert",
    forms=("[OPTIONS] SRC DEST", "[OPTIONS] --dataset MODULE:NAME DEST"),
    examples=(
        "paceline data convert photos/ shards/",
        "paceline data convert labels.csv shards/",
        "paceline data convert --dataset my_data:train_set shards/",
        "paceline data convert corpus.jsonl tokens/ --tokenizer tokenizer.json",
    ),
    groups={
        "Source": (
            "--format",
            "--dataset",
            "--columns",
            "--classes-from",
            "--images",
            "--tokenizer",
            "--text-field",
            "--on-error",
        ),
        "Shards": ("--shard-mb", "--seed", "--no-shuffle", "--verbatim"),
        "Limits": ("--processes",),
    },
)
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="Format of SRC. Default: derived from the name of SRC."
)
@click.option(
    "--dataset",
    metavar="MODULE:NAME",
    help="Convert this Python Dataset, or the Dataset that this function returns, instead of SRC.",
)
@click.option(
    "--columns",
    metavar="A,B,...",
    help="Names for the parts of each sample, such as image,label (only with --dataset).",
)
@click.option(
    "--classes-from",
    metavar="DATASET|FILE",
    type=_FOLDER,
    help="Number the classes as in this converted data set, or by the lines of this text file.",
)
@click.option(
    "--images",
    type=click.Choice(["png", "jpeg"]),
    help="How to write images that a Dataset returns as pixels: png keeps every value, jpeg is smaller.",
)
@click.option(
    "--tokenizer",
    metavar="bytes|FILE",
    help="Use bytes as tokens, or use the tokenizer in FILE, a tokenizer.json (only for text).",
)
@click.option(
    "--text-field", default="text", show_default=True, metavar="NAME",
    help="Field of JSON, or column of CSV or Parquet, that holds the text (only with --tokenizer).",
)  # fmt: skip
@click.option(
    "--shard-mb", type=FiniteFloat(0, min_open=True), default=128, show_default=True, metavar="MB",
    help="Size of a shard in MB.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed for the order of the samples."
)
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the samples instead of shuffling them.")
@click.option(
    "--verbatim",
    is_flag=True,
    help="Copy JPEG files unchanged. The loader then has to decode the whole image for each crop.",
)
@click.option(
    "--on-error", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
    help="What to do with a sample that cannot be read: stop the conversion, or skip it and list it in skipped.txt.",
)  # fmt: skip
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Number of processes that convert samples. Default: the number of CPU cores.",
)
@click.argument("paths", type=DataPath(), nargs=-1, required=True, metavar="SRC DEST")
def command(paths: tuple[str, ...], **options: Any) -> int:
    """Convert a data set into shards: tar files with an index beside each.

    SRC is a folder of images, sound or video, with or without a folder per class, a CSV or TSV file with a column of
    paths, a COCO file (JSON), or files in WebDataset, TFRecord, Parquet, Arrow, HDF5, Zarr, .npy, MDS, JSON lines or
    text format. DEST is a new folder. To continue an interrupted conversion, repeat the command. JPEG files get restart
    markers, so that the loader decodes only a part of the image for a crop. The pixels stay the same. SRC and DEST can
    also be URLs of an object store, which are copied through this machine.
    """
    with local_paths(paths, options) as local:
        if not local.is_complete:
            _convert(local.paths, local.shown_dest, options)
        local.send()
    return 0


def _convert(paths: tuple[Path, ...], shown_dest: str, options: Mapping[str, Any]) -> None:
    """Convert a data set from one local path to another."""
    from paceline.data.convert.convert import Options, convert, cores
    from paceline.data.sources import BadSample

    if is_text(paths, options):
        if len(paths) != 2:
            raise UsageError(_paths_message(paths))
        convert_text(paths, shown_dest, options, _given())
        return
    asked = Options(
        shard_bytes=int(options["shard_mb"] * (1 << 20)),
        seed=None if options["no_shuffle"] else options["seed"],
        verbatim=options["verbatim"],
        on_error=options["on_error"],
    )
    try:
        source, dest, changes = _source(paths, options)
        _warn(source, verbatim=asked.verbatim)
        with Progress("samples") as progress:
            made = convert(source, dest, asked, options["processes"] or cores(), progress, changes)
    except BadSample as error:
        if asked.on_error == "skip":  # none of the samples that determine the columns can be read
            raise UsageError(f"{error}; repair one of the first samples, which determine the columns") from error
        raise UsageError(
            f"{error}; repair the sample, or skip all samples that cannot be read with --on-error skip"
        ) from error
    tell_skipped(made.skipped, shown_dest)
    contents = made.contents
    size = units.size(sum(shard.bytes for shard in contents.shards))
    skipped = f", {len(made.skipped):,} skipped" if made.skipped else ""
    resumed = f", {made.resumed:,} of them converted before the conversion was interrupted" if made.resumed else ""
    shards = count(len(contents.shards), "shard")
    click.echo(f"{count(contents.samples, 'sample')} in {shards}, {size}{skipped}{resumed}: {shown_dest}")
    for text in (one for column in contents.columns for one in column.notes):
        click.echo(f"paceline: {text}", err=True)
    click.echo(f"paceline: next: paceline data bench {shown_dest}", err=True)


def _warn(source: Source, *, verbatim: bool) -> None:
    """Warn about options that are probably a mistake."""
    from paceline.data.convert.lossless import jpegtran
    from paceline.data.format.model import shown
    from paceline.data.sources.files import Files

    if not verbatim and jpegtran() is None and any(column.kind == "image" for column in source.columns):
        click.echo(
            "paceline: JPEG files are copied unchanged, because jpegtran is not installed; the loader will decode "
            "the whole image for each crop. On Debian and Ubuntu: apt install libjpeg-turbo-progs",
            err=True,
        )
    for text in getattr(source, "notes", ()):
        click.echo(f"paceline: {text}", err=True)
    if isinstance(source, Files) and (empty := source.empty_classes):
        named = ", ".join(map(shown, empty[:8])) + (", ..." if len(empty) > 8 else "")
        click.echo(
            f"paceline: these folders contain no images but count as classes, as in torchvision: {named}", err=True
        )


def _paths_message(paths: tuple[Path, ...]) -> str:
    given = f"1 path: {paths[0]}" if len(paths) == 1 else f"{len(paths)} paths: {' '.join(map(str, paths))}"
    return f"expected SRC and DEST, not {given}; for example `paceline data convert photos/ shards/`"


def _given() -> list[str]:
    """Return the names of the options that were given on the command line."""
    context = click.get_current_context()
    return [name for name in context.params if context.get_parameter_source(name) == ParameterSource.COMMANDLINE]


def _source(paths: tuple[Path, ...], options: Mapping[str, Any]) -> tuple[Source, Path, Callable[[], str]]:
    """Return the source to convert, the destination, and a function that tells how the source's files changed since."""
    from paceline.data.sources.dataset import DatasetSource
    from paceline.data.sources.found import classes_from, kind_at, list_files, source_of

    dataset, columns, images = options["dataset"], options["columns"], options["images"]
    if dataset is not None:
        if len(paths) != 1:
            raise UsageError(
                f"--dataset replaces SRC; give only DEST: `paceline data convert --dataset {dataset} DEST`"
            )
        names = tuple(columns.split(",")) if columns else ()
        if options["classes_from"] is not None:
            raise UsageError("--classes-from is for folders of images and tables; a Dataset has labels of its own")
        return DatasetSource(dataset, names, images), paths[0], str
    if len(paths) != 2:
        raise UsageError(_paths_message(paths))
    if columns is not None:
        raise UsageError("--columns can only be used with --dataset, because columns of files already have names")
    if images is not None:
        raise UsageError("--images can only be used with --dataset, because image files are copied as they are")
    folder, dest = paths
    known = options["classes_from"]
    files = list_files(folder, kind_at(folder, options["kind"]))
    source = source_of(folder, options["kind"], classes_from(known) if known is not None else None)
    if folder.is_dir() and dest.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{dest} is inside {folder}, so the conversion would read its own output; name a folder elsewhere"
        )
    return source, dest, files.changes
