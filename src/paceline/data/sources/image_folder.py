"""Conversion source: a folder with a subfolder of images for each class, as in torchvision, or without classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from paceline.core.errors import UsageError
from paceline.data.format.model import Column, shown
from paceline.data.sources.files import (
    AUDIO,
    LABEL,
    VIDEO,
    Files,
    file_column,
    files_below,
    listed,
    numbers_of,
    size_of,
)

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # those of torchvision
SPLITS = ("train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval")  # names of folders


def image_folder(root: Path, classes: Sequence[str] | None = None) -> Files:
    """List the images in the subfolders of a folder; the names of the subfolders are the classes.

    If all images are in the folder itself, they have no labels. If there are no images, audio or video files are listed
    instead.

    Args:
        root: The folder.
        classes: The names of the classes in order; None for the sorted names of the subfolders.

    Raises:
        UsageError: There are no files to convert, a subfolder is not among the classes, or the subfolders are splits.
    """
    kept, below = image_files(root)
    flat = not any("/" in file for file in kept)
    suffixes = _suffixes_of(kept)
    others = [file for file in set(below) - set(kept) if not Path(file).name.startswith(".") or _has(file, suffixes)]
    left_out = Counter(_reason(file, suffixes) for file in others)
    columns, values = [file_column(kept)], dict[str, list[int]]()
    named: Sequence[str] = ()
    if not flat:
        there = listed(root)[1]
        if len(there) > 1 and {name.lower() for name in there} <= set(SPLITS):
            raise UsageError(
                f"the folders {', '.join(there)} of {root} would become classes, and look like splits, each a data set "
                f"of its own; name one of them, such as {root / there[0]}"
            )
        wanted = there if classes is None else classes
        labels, named = numbers_of(root, [file.partition("/")[0] for file in kept], wanted)
        columns.append(Column(name=LABEL, kind="int"))
        values[LABEL] = labels
    elif classes is not None:
        raise UsageError(f"{root} has no folders of classes, and --classes-from needs them")
    sizes = [size_of(root / file) for file in kept]
    return Files(root, kept, sizes, columns, values, named, dict(left_out))


def image_files(root: Path) -> tuple[list[str], list[str]]:
    """Return the images in the subfolders of a folder (or else in the folder itself), and all files.

    Raises:
        UsageError: There are no images, audio or video files.
    """
    below = list(files_below(root))
    files = [file for file in below if file.lower().endswith(_suffixes_of(below))]
    if not files:
        kinds = Counter(Path(file).suffix.lower() or "without suffix" for file in below)
        has = ", ".join(f"{count:,} {shown(kind)}" for kind, count in kinds.most_common(3)) or "no files"
        raise UsageError(
            f"no images in {root}, which has {has} in it and its subfolders: give a folder with one folder of images "
            f"({', '.join(SUFFIXES)}) for each class, or a table (CSV) of paths and labels; text takes --tokenizer"
            f"{_other_format(below)}"
        )
    return [file for file in files if "/" in file] or files, below


def _other_format(files: Sequence[str]) -> str:
    """Return a hint for the files of other formats in a folder; empty without."""
    ends = {Path(file).suffix.lower() for file in files}
    if ends & {".jsonl", ".ndjson"}:
        return "; JSON lines beside other files take --format jsonl, and those in subfolders are given one by one"
    if ".npz" in ends:
        return "; of .npz files, one is a data set: give its path"
    below = any("/" in file for file in files)
    return "; files of other formats must be in the folder itself, or are given one by one" if below else ""


def _suffixes_of(files: Sequence[str]) -> tuple[str, ...]:
    """Return the suffixes of images if any file has one, else those of audio, else those of video."""
    kinds = (SUFFIXES, AUDIO, VIDEO)
    return next((one for one in kinds if any(file.lower().endswith(one) for file in files)), SUFFIXES)


def _reason(file: str, wanted: tuple[str, ...]) -> str:
    """Return the reason why a file is not converted: it is not in the folder of a class, or has another suffix."""
    suffix = Path(file).suffix.lower() or "without suffix"
    return f"{suffix} beside the folders of classes" if _has(file, wanted) else suffix


def _has(file: str, suffixes: tuple[str, ...]) -> bool:
    return file.lower().endswith(suffixes)
