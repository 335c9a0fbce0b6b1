"""Detection of the format of a source from its file names, and creation of the source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec

from paceline.core.errors import UsageError
from paceline.data.format.contents import read_contents
from paceline.data.format.model import CONTENTS_FILE, shown
from paceline.data.sources import Source
from paceline.data.sources.arrays import HDF5, Arrays
from paceline.data.sources.coco import Coco
from paceline.data.sources.exported_columns import CLASSES_FILE, COLUMNS_FILE
from paceline.data.sources.files import files_below, left_out_notes, listed, times_of
from paceline.data.sources.image_folder import SPLITS, image_files, image_folder
from paceline.data.sources.json_lines import LINES, json_lines
from paceline.data.sources.mds import is_mds, mds_folder
from paceline.data.sources.parquet import tables
from paceline.data.sources.table import file_table
from paceline.data.sources.tfrecord import tfrecords
from paceline.data.sources.webdataset import PACKED, PLAIN, tars
from paceline.data.sources.zarr_arrays import is_zarr

_SPLITS = "dataset_dict.json"  # files of Hugging Face's datasets
_STATE, _INFO, _CACHE = "state.json", "dataset_info.json", "cache-"
_PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip")
_OF_FILES: Mapping[str, tuple[tuple[str, ...], Callable[[Sequence[Path]], Source]]] = {
    "webdataset": ((*PLAIN, *PACKED), tars),
    "tfrecord": ((".tfrecord", ".tfrecords", ".tfrec"), tfrecords),
    "parquet": ((".parquet", ".pq"), tables),
    "arrow": ((".arrow", ".feather"), partial(tables, arrow=True)),
    "jsonl": (LINES, json_lines),
}
_OF_A_FOLDER_OR_FILE: Mapping[str, tuple[str, Callable[[Path], Source]]] = {
    "images": ("folder", image_folder),
    "table": ("file", file_table),
    "npy": ("folder or file", Arrays),
    "hdf5": ("file", partial(Arrays, form="hdf5")),
    "zarr": ("folder", partial(Arrays, form="zarr")),
    "coco": ("file", Coco),
    "mds": ("folder", mds_folder),
}

_NUMBERED: Mapping[str, Callable[[Path, Sequence[str]], Source]] = {"images": image_folder, "table": file_table}


def classes_from(path: Path) -> list[str]:
    """Return the names of the classes of a converted dataset, or the lines of a text file.

    Raises:
        UsageError: The path cannot be read, or has no classes or duplicates.
    """
    if path.is_dir():
        classes = list(read_contents(path).classes)
    else:
        try:
            classes = [line for line in path.read_text(encoding="utf-8-sig").splitlines() if line]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--classes-from {path} cannot be read: {error}") from error
    if not classes or len(set(classes)) < len(classes):
        raise UsageError(
            f"--classes-from {path} has {'the same class twice' if classes else 'no class names'}; "
            "give a converted data set whose labels have names, or a text file with one class on each line"
        )
    return classes


def source_of(path: Path, kind: str | None, classes: Sequence[str] | None = None) -> Source:
    """Return the source at a path.

    Args:
        path: A file or a folder.
        kind: The format: images, table, webdataset, tfrecord, parquet, arrow, hdf5, zarr, coco, npy, jsonl or
            mds; None to detect it from file names.
        classes: The names of the classes in order, for images and tables; None for the names in the source.

    Raises:
        UsageError: There is nothing at the path that can be converted.
    """
    if kind is None and (path / CONTENTS_FILE).is_file():
        raise UsageError(
            f"{path} is a data set of paceline data convert already; to put data sets together, use paceline data "
            "merge, and to read it, use ShardedDataset"
        )
    kind = kind_at(path, kind)
    if classes is not None and kind not in _NUMBERED:
        raise UsageError(f"--classes-from is for folders of images and tables, and {path} has format {kind}")
    if classes is not None and (twice := [name for name, count in Counter(classes).items() if count > 1]):
        raise UsageError(f"the list of classes has {twice[0]!r} more than once; give each class once")
    if kind in _OF_A_FOLDER_OR_FILE:
        wanted, listed = _OF_A_FOLDER_OR_FILE[kind]
        if wanted == "folder" and not path.is_dir() or wanted == "file" and not path.is_file():
            raise UsageError(f"--format {kind} needs a {wanted}, and {path} is not one; leave --format out")
        return listed(path) if classes is None else _NUMBERED[kind](path, classes)
    suffixes, listed_together = _OF_FILES[kind]
    files = [path] if path.is_file() else _saved_files(path) if kind == "arrow" else _files(path, suffixes)
    if not files:
        raise UsageError(f"no files in {path} whose names end in {', '.join(suffixes)}")
    found: Any = listed_together(files)
    others = [*_others(path, files), *split_notes(files)] if path.is_dir() else []
    return cast(Source, replace(found, left_out=[*found.left_out, *others]))


def split_notes(files: Sequence[Path]) -> list[str]:
    """Return a message if the names of the files contain several splits, which become one dataset; else empty."""
    found = {split for file in files for split in SPLITS if split in re.split(r"[^a-z]", file.name.lower())}
    if len(found) < 2:
        return []
    return [
        f"files of the splits {', '.join(sorted(found))} become one data set; to convert one split, move its files "
        "to a folder of their own"
    ]


def kind_at(path: Path, kind: str | None) -> str:
    """Return the format of the data at a path: the given one, or the one detected from file names.

    Raises:
        UsageError: There is no file and no folder, or its format is not recognised.
    """
    if path.is_file() or path.is_dir():
        return kind or _kind(path)
    raise UsageError(
        f"{path} is neither a file nor a folder"
        if path.exists()
        else f"there is no file or folder {path}; give the data to convert as SRC"
    )


@dataclass(frozen=True)
class FileList:
    """The data files at a path at the time of listing."""

    path: Path
    kind: str  # the format
    names: frozenset[str]
    time: str  # a digest of the modification time, if the path is a file

    def changes(self) -> str:
        """Return a message about files added, removed or changed since the listing; empty if there is no change."""
        now = list_files(self.path, self.kind)
        if now.time != self.time:
            return f"{self.path} was written to"
        for said, names in (("added", now.names - self.names), ("removed", self.names - now.names)):
            if names:
                first = ", ".join(map(shown, sorted(names)[:3])) + ", ..." * (len(names) > 3)
                return f"{len(names):,} {'file was' if len(names) == 1 else 'files were'} {said} ({first})"
        return ""


def list_files(path: Path, kind: str) -> FileList:
    """List the data files at a path.

    Args:
        path: A file or a folder.
        kind: The format.
    """
    if not path.is_dir():
        return FileList(path, kind, frozenset(), times_of([path]))
    if kind == "images":
        names = image_files(path)[0]
    else:
        suffixes = (".npy",) if kind == "npy" else _OF_FILES[kind][0] if kind in _OF_FILES else ()
        names = [file.name for file in (_saved_files(path) if kind == "arrow" else _files(path, suffixes))]
    return FileList(path, kind, frozenset(names), "")


def _kind(path: Path) -> str:
    if is_zarr(path):
        return "zarr"
    if (path / _SPLITS).is_file():
        inner = ", ".join(sorted(str(one) for one in path.iterdir() if one.is_dir()))
        raise UsageError(f"{path} holds several splits, each a data set of its own; name one of {inner}")
    if path.is_file():
        if path.suffix.lower() in (*HDF5, ".npy", ".npz"):
            return "hdf5" if path.suffix.lower() in HDF5 else "npy"
        if path.suffix.lower() in (".csv", ".tsv", ".json"):
            return "coco" if path.suffix.lower() == ".json" else "table"
    if _state(path) is not None or is_mds(path):
        return "mds" if is_mds(path) else "arrow"
    for kind, (suffixes, _) in _OF_FILES.items():
        if [path] * _is(path, suffixes) if path.is_file() else _files(path, suffixes) and kind != "jsonl":
            return kind
    if path.is_dir():
        return "npy" if _files(path, (".npy",)) else "jsonl" if _is_lines_only(path) else "images"
    unpack = ", or unpack it first" if path.suffix.lower() in _PACKED else ""
    raise UsageError(f"the format of {path} is not recognised; give it with --format{unpack}")


def _is_lines_only(folder: Path) -> bool:
    """Return whether a folder has only JSON lines. Beside images, JSON lines describe the images."""
    files, folders = listed(folder)
    return bool(files) and not folders and len(_files(folder, LINES)) == len(files)


def _others(folder: Path, files: Sequence[Path]) -> list[str]:
    """Return a message about the files in a folder and its subfolders that are not converted."""
    taken = {str(file.relative_to(folder)) for file in files}
    others = [Path(file) for file in files_below(folder) if file not in taken]
    kinds = [f"{one.suffix.lower() or 'without suffix'}{' in folders below' * ('/' in str(one))}" for one in others]
    no_data = {_STATE, _INFO, COLUMNS_FILE} | ({CLASSES_FILE} if (folder / COLUMNS_FILE).is_file() else set())
    shown_kinds = Counter(
        kind for kind, one in zip(kinds, others, strict=True) if one.name[0] != "." and one.name not in no_data
    )
    return left_out_notes(folder, shown_kinds)


def _state(folder: Path) -> Mapping[str, Any] | None:
    """Return the `state.json` of Hugging Face's `save_to_disk` in a folder, or None if it did not write the folder.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        found = msgspec.json.decode((folder / _STATE).read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        if (folder / _INFO).is_file():
            raise UsageError(f"{folder / _STATE} cannot be read ({error}); save the data set again") from error
        return None
    return found if "_data_files" in found else None


def _saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder; if `save_to_disk` wrote it, the files listed in its state, in order.

    Raises:
        UsageError: A file is missing, or the folder has a selection of rows by a list of row numbers.
    """
    state, there = _state(folder), _files(folder, _OF_FILES["arrow"][0])
    if state is None:
        is_cached = (folder / _INFO).is_file()  # the cache of Hugging Face's datasets, which also has results of `map`
        return [path for path in there if not (is_cached and path.name.startswith(_CACHE))]
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise UsageError(
            f"{folder} holds a selection of rows, which its Arrow files do not show; in Python, save it with "
            "load_from_disk(SRC).flatten_indices().save_to_disk(NEW), and convert NEW"
        )
    files = [folder / str(one["filename"]) for one in state["_data_files"]]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise UsageError(
            f"{folder} lacks {', '.join(missing[:3])}{', ...' * (len(missing) > 3)}: {len(missing)} of {len(files)} "
            f"files that its {_STATE} lists; copy the folder again"
        )
    return files


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return [folder / name for name in listed(folder)[0] if _is(folder / name, suffixes)]


def _is(path: Path, suffixes: Sequence[str]) -> bool:
    """Return whether a name has one of the suffixes, at its end or before a part such as ``-00000-of-00004``."""
    return any(path.name.lower().endswith(suffix) or f"{suffix}-" in path.name.lower() for suffix in suffixes)
