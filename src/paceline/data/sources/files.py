"""Conversion source: image, audio or video files, one for each sample, with values of other columns."""

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
    """Files in a folder and its subfolders, each with values of other columns."""

    root: Path
    files: Sequence[str]  # relative to the root
    sizes: Sequence[int]  # in bytes; 0 for missing files
    columns: Sequence[Column]  # the first column has the files
    values: Mapping[str, Sequence[str | int | float | None]]  # for each other column a value for each file
    classes: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)  # the number of files that are no sample, by suffix

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labels(self) -> Sequence[str | int | float | None]:
        """The label of each file; empty without labels."""
        return self.values.get(LABEL, ())

    @property
    def version(self) -> str:
        """A digest of the values, the classes, and the modification times of the files."""
        times = times_of([self.root / file for file in self.files])
        told = repr(([(name, list(values)) for name, values in self.values.items()], list(self.classes), times))
        return hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()

    @property
    def notes(self) -> Sequence[str]:
        """Messages about files that are not converted."""
        return left_out_notes(self.root, self.left_out)

    @property
    def empty_classes(self) -> Sequence[str]:
        """The names of classes without files."""
        there = set(self.labels)
        return [name for number, name in enumerate(self.classes) if number not in there]

    def size(self, number: int) -> int:
        """Return the number of bytes of a file."""
        return self.sizes[number]

    def name(self, number: int) -> str:
        """Return the path of a file relative to the root."""
        return self.files[number]

    def sample(self, number: int) -> Sample:
        """Return the bytes of a file, unchanged, and the sample's values of the other columns.

        Raises:
            BadSample: The file cannot be read or is empty.
        """
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
    """Return a message about files that are not converted, counted by suffix; empty if there are none."""
    if not left_out:
        return []
    kinds = sorted(left_out.items(), key=lambda one: -one[1])
    said = ", ".join(f"{count:,} {shown(kind)}" for kind, count in kinds[:5])
    return [f"{sum(left_out.values()):,} files of {root} are not converted: {said}"]


def file_column(files: Sequence[str]) -> Column:
    """Return the column for files: of images, or of bytes for audio, video and other files."""
    suffixes = {Path(file).suffix.lower() for file in files}
    if suffixes <= {f".{suffix}" for suffix in PICTURES}:
        return Column(name="image", kind="image")
    name = "audio" if suffixes <= set(AUDIO) else "video" if suffixes <= set(VIDEO) else "file"
    return Column(name=name, kind="bytes")


def numbers_of(path: Path, labels: Sequence[str], classes: Sequence[str] | None) -> tuple[list[int], Sequence[str]]:
    """Return the number of each label, and the names of the classes.

    Args:
        path: The source, for messages.
        labels: The name of the label of each sample.
        classes: The names of the classes; None for the sorted names of the labels.

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
    """Return the number of bytes of a file, or 0 if it is missing; reading it then gives an error."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def times_of(files: Sequence[Path]) -> str:
    """Return a digest of the modification times of files, because content can change without a change of size."""
    digest = hashlib.sha256()
    for file in files:
        with suppress(OSError):  # reading the file gives an error
            digest.update(file.stat().st_mtime_ns.to_bytes(16, "little", signed=True))
    return digest.hexdigest()


def files_below(root: Path) -> Iterator[str]:
    """Yield the sorted relative paths of all files in a folder, its subfolders and the folders that it links to.

    A broken link whose name has a suffix is yielded as a file, and reading it gives an error.

    Raises:
        UsageError: A link leads to a folder that contains it, or is broken and has no suffix; or there is a pipe, a
            socket or a device.
        EnvironmentFault: A folder cannot be listed.
    """
    yield from _below(root, ())


def _below(folder: Path, above: tuple[str, ...]) -> Iterator[str]:
    """Yield the files in a folder and its subfolders; `above` has the real paths of the folders above."""
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
    """Return the sorted names of the files and of the folders in a folder; raise the same errors as `files_below`."""
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
    """Return whether an entry that is no folder counts as a file; False for hidden links, pipes and sockets.

    Raises:
        UsageError: The entry is a pipe, a socket, a device, or a broken link without a suffix, perhaps to a folder.
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
    """Return the name of the type of a special file, for messages."""
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_file(path: Path) -> bytes:
    """Read a regular file. Other files, such as pipes, are not opened, as reading could block.

    Raises:
        OSError: The file cannot be read, or is no regular file.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_special(mode)}, and not a file")
    return path.read_bytes()


def _suffix(path: Path) -> str:
    plain = path.suffix.lower().removeprefix(".")
    return {"jpeg": "jpg", "": "bin"}.get(plain, plain)
