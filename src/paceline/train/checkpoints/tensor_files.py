"""Files with named tensors: safetensors and torch's own format, written whole and read lazily.

A safetensors file is the length of a JSON header (8 bytes, little endian), the header with type, shape and place of
each tensor, and the bytes (https://github.com/huggingface/safetensors). Files are mapped into memory, so that a reader
of a part of a tensor reads only this part from the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.train.ranks.agreement import bytes_of

TORCH_SUFFIXES = (".pt", ".pth", ".bin")
SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
_INDEX = "model.safetensors.index.json"  # of a model in several files, as Hugging Face writes it
_TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64",
}  # fmt: skip


def write_tensors(state: Mapping[str, Any], path: Path, suffix: str) -> None:
    """Write tensors on the CPU to a file.

    Args:
        state: Contiguous tensors by name.
        path: The file.
        suffix: One of `SUFFIXES`, which names the format.

    Raises:
        UsageError: A tensor is of a type that safetensors does not have.
    """
    import torch

    if suffix in TORCH_SUFFIXES:
        with path.open("wb") as file:  # the archive then has no name of its own
            torch.save(dict(state), file)
        return
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, value in state.items():
        kind = _TYPES.get(str(value.dtype).removeprefix("torch."))
        if kind is None:
            raise UsageError(
                f"export: {name} has data type {value.dtype}, which safetensors cannot store; export to a .pt file"
            )
        header[name] = {"dtype": kind, "shape": list(value.shape), "data_offsets": [end, end + value.nbytes]}
        end += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in state.values():
            file.write(bytes_of(value).numpy().tobytes())


def open_tensors(path: Path) -> dict[str, Any]:
    """Return the tensors of a file, or of a folder of safetensors files, by name; they are read when they are used.

    Raises:
        UsageError: The path is missing, has another ending, or is damaged.
    """
    if path.is_dir():
        return {name: value for file in _files_of(path) for name, value in open_tensors(file).items()}
    if path.suffix not in SUFFIXES:
        raise UsageError(f"weights {path}: the name of the file must end in {', '.join(SUFFIXES)}")
    try:
        return _open_torch(path) if path.suffix in TORCH_SUFFIXES else _open_safetensors(path)
    except Exception as error:  # torch.load raises errors of many kinds
        raise UsageError(f"weights {path} cannot be read: {type(error).__name__}: {error}") from error


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a model: those in its index, or all safetensors files of the folder."""
    index = folder / _INDEX
    if index.exists():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        return [folder / name for name in sorted(set(names))]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(
            f"weights {folder}: the folder has neither a checkpoint of engine.save() nor safetensors files; give one "
            f"of these, or a file that ends in {', '.join(SUFFIXES)}"
        )
    return files


def _open_torch(path: Path) -> dict[str, Any]:
    import torch

    found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def _open_safetensors(path: Path) -> dict[str, Any]:
    import torch

    with path.open("rb") as file:
        begin = 8 + (length := int.from_bytes(file.read(8), "little"))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    mapped = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    types = {kind: getattr(torch, name) for name, kind in _TYPES.items()}
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype, part = types[entry["dtype"]], mapped[begin + first : begin + last]
        aligned = part if (begin + first) % dtype.itemsize == 0 else part.clone()
        found[name] = aligned.view(dtype).view(entry["shape"])
    return found
