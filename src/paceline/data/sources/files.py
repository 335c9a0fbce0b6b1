"""Files of images, sound or video, one for each sample, with the values of other columns beside it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.column_kinds import PICTURES, text_of
from paceline.data.format.model import Column, Payload, Sample, shown
from paceline.data.sources import BadSample

AUDIO = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a", ".aac")
VIDEO = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".mpg", ".mpeg")
LABEL = "label"


@dataclass(frozen=True)
class Files:
    """Files below a folder, each with values."""

    root: Path
    files: Sequence[str]  # relative to the root
    sizes: Sequence[int]  # in bytes; 0 of what is not there
    columns: Sequence[Column]  # the first is of the files
    values: Mapping[str, Sequence[str | int | float | None]]  # of each other column
    classes: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)  # files of the folder that are no sample, by suffix

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> Sequence[str | int | float | None]:
        """The label of each file; empty where there are none."""
        return self.values.get(LABEL, ())

    @property
    def version(self) -> str:
        """A digest of the values, and of the times at which the files were changed."""
        times = times_of([self.root / file for file in self.files])
        told = repr(([(name, list(values)) for name, values in self.values.items()], list(self.classes), times))
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def notes(self) -> Sequence[str]:
        """What is left out of the folder."""
        return left_out_notes(self.root, self.left_out)

    @property
    def empty_classes(self) -> Sequence[str]:
        """Classes that no file is of."""
        there = set(self.labels)
        return [name for number, name in enumerate(self.classes) if number not in there]

    def size(self, number: int) -> int:
        """Return the bytes of a file."""
        return self.sizes[number]

    def name(self, number: int) -> str:
        """Return the path below the root."""
        return self.files[number]

    def sample(self, number: int) -> Sample:
        """Read a file as it is."""
        path = self.root / self.files[number]
        try:
            data = read_file(path)
        except OSError as error:
            raise BadSample(f"{path} cannot be read: {error.strerror or error}") from error
        if not data:
            raise BadSample(f"{path} is empty")
        made: dict[str, Payload | int | float | None] = {self.columns[0].name: Payload(data=data, suffix=_suffix(path))}
        for column in self.columns[1:]:
            value = self.values[column.name][number]
            made[column.name] = text_of(value) if isinstance(value, str) else value
        return made


def left_out_notes(root: Path, left_out: Mapping[str, int]) -> list[str]:
    """Return a message about files of a folder that are not converted, counted by kind; none if there are none."""
    if not left_out:
        return []
    kinds = sorted(left_out.items(), key=lambda one: -one[1])
    said = ", ".join(f"{count:,} {shown(kind)}" for kind, count in kinds[:5])
    return [f"{sum(left_out.values()):,} files of {root} are not converted: {said}"]


def file_column(files: Sequence[str]) -> Column:
    """Return the column of some files: of images, or of bytes, which audio and video stay."""
    suffixes = {Path(file).suffix.lower() for file in files}
    if suffixes <= {f".{suffix}" for suffix in PICTURES}:
        return Column(name="image", kind="image")
    name = "audio" if suffixes <= set(AUDIO) else "video" if suffixes <= set(VIDEO) else "file"
    return Column(name=name, kind="bytes")


def numbers_of(path: Path, labels: Sequence[str], classes: Sequence[str] | None) -> tuple[list[int], Sequence[str]]:
    """Return the number of each label, and the classes: the labels in order unless they are given.

    Raises:
        UsageError: A label is not among the classes.
    """
    wanted = sorted(set(labels)) if classes is None else list(classes)
    number = {name: place for place, name in enumerate(wanted)}
    new = sorted({label for label in labels if label not in number})
    if new:
        raise UsageError(
            f"{path} has classes that --classes-from does not have: {', '.join(map(shown, new[:5]))}; "
            f"it has {', '.join(map(shown, wanted[:5]))}{', ...' if len(wanted) > 5 else ''}"
        )
    return [number[label] for label in labels], wanted


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none, which is told when it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def times_of(files: Sequence[Path]) -> str:
    """Return a digest of the times at which files were changed: content may change at the same size."""
    digest = hashlib.sha256()
    for file in files:
        with suppress(OSError):  # which is told when it is read
            digest.update(file.stat().st_mtime_ns.to_bytes(16, "little", signed=True))
    return digest.hexdigest()


def files_below(root: Path) -> Iterator[str]:
    """Yield the files below a folder and the folders that it links to, relative to it, in order.

    A link to nothing whose name has a suffix counts as a file, which cannot be read.

    Raises:
        UsageError: A link leads to a folder that it lies in or, without a suffix, to nothing; or there is a pipe, a
            socket or a device.
        EnvironmentFault: A folder cannot be listed.
    """
    yield from _below(root, ())


def _below(folder: Path, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the files below a folder; `above` has the real paths of the folders that lead to it."""
    files, folders = listed(folder)
    yield from files
    lying_in = (*above, os.path.realpath(folder) + os.sep)
    for name in folders:
        path = folder / name
        target = os.path.realpath(path) + os.sep if path.is_symlink() else None
        if target is not None and any(one.startswith(target) for one in lying_in):
            raise UsageError(f"{path} is a link to a folder that it lies in; remove the link")
        yield from (f"{name}/{file}" for file in _below(path, lying_in))


def listed(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in a folder, each in order; see `files_below`."""
    files, folders = list[str](), list[str]()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
                    folders.append(entry.name)
                elif _is_file(entry):
                    files.append(entry.name)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot list the folder {folder}: {error.strerror or error}; make it readable, or move it out of the data"
        ) from error
    return sorted(files), sorted(folders)


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Say whether an entry that is no folder may be a file of the data; False for hidden links, pipes and sockets.

    Raises:
        UsageError: It is a pipe, a socket, a device, or a link to nothing without a suffix, perhaps of a folder.
    """
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        if not entry.is_symlink():
            raise
        if entry.name.startswith(".") or Path(entry.name).suffix:
            return not entry.name.startswith(".")
        raise UsageError(
            f"{entry.path} is a link that leads nowhere ({error.strerror}); mend the link, or remove it"
        ) from error
    if not stat.S_ISREG(mode) and not entry.name.startswith("."):
        raise UsageError(f"{entry.path} is {_special(mode)}, and not a file; remove it from the folder")
    return stat.S_ISREG(mode)


def _special(mode: int) -> str:
    """Return what a thing in a file system is that is neither a file nor a folder."""
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_file(path: Path) -> bytes:
    """Read a file. What is no file, such as a pipe, is not opened.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_special(mode)}, and not a file")
    return path.read_bytes()


def _suffix(path: Path) -> str:
    plain = path.suffix.lower().removeprefix(".")
    return {"jpeg": "jpg", "": "bin"}.get(plain, plain)
