"""Are files of tensors read lazily as the safetensors library and torch wrote them, and refused if damaged?"""

from __future__ import annotations

import json

import pytest
import torch

from paceline.core.errors import UsageError
from paceline.train.checkpoints.tensor_files import open_tensors, write_tensors

STATE = {
    "half": torch.arange(6).reshape(2, 3).to(torch.bfloat16),
    "flag": torch.tensor([True, False, True]),
    "number": torch.tensor(4, dtype=torch.int64),
    "empty": torch.empty(0, 3),
    "weight": torch.randn(5, 2),
}


def same(found):
    assert sorted(found) == sorted(STATE)
    for name, value in STATE.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert torch.equal(found[name], value)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_what_was_written_is_read(tmp_path, suffix):
    write_tensors(STATE, tmp_path / f"file{suffix}", suffix)
    same(open_tensors(tmp_path / f"file{suffix}"))


@pytest.mark.parametrize("index", [True, False])
def test_a_folder_in_the_format_of_hugging_face_is_read(tmp_path, index):
    save = pytest.importorskip("safetensors.torch").save_file
    parts = {"a.safetensors": ["half", "flag", "number"], "b.safetensors": ["empty", "weight"]}
    for file, names in parts.items():
        save({name: STATE[name] for name in names}, tmp_path / file)
    if index:
        save({"other": torch.ones(1)}, tmp_path / "other.safetensors")
        places = {name: file for file, names in parts.items() for name in names}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    same(open_tensors(tmp_path))


def test_tensors_that_are_not_aligned_are_read(tmp_path):
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (tmp_path / "odd.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + torch.tensor([1.5, 2.5]).numpy().tobytes()
    )
    assert len(header) % 4
    assert open_tensors(tmp_path / "odd.safetensors")["a"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.onnx", b"", r"must end in \.safetensors, \.pt"),
        ("model.safetensors", b"\x08\x00\x00\x00\x00\x00\x00\x00broken", "cannot be read"),
        ("model.pt", b"broken", "cannot be read"),
        ("folder", None, "neither a checkpoint"),
        ("absent.safetensors", None, "cannot be read: FileNotFoundError"),
    ],
)
def test_a_path_without_tensors_is_refused(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name == "folder":
        path.mkdir()
    with pytest.raises(UsageError, match=says):
        open_tensors(path)
