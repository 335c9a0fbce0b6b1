"""Every column of a data set reaches the batch, unless others are asked for."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.making import pixels

from paceline.core.errors import UsageError
from paceline.data import CenterCrop, Loader
from paceline.data.convert.convert import Options, convert
from paceline.data.sources.dataset import DatasetSource

COUNT = 12


def sample(number: int) -> dict[str, object]:
    return {
        "image": Image.fromarray(pixels(32, 32, number)),
        "label": number,
        "caption": f"picture {number}",
        "mask": Image.fromarray(np.full((32, 32), number, np.uint8)),
        "boxes": np.full((number % 3 + 1, 4), number, np.float32),
        "points": np.full(2, number, np.int64),
        "sound": bytes([number]) * number,
        "score": number / 4,
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns") / "shards"
    sys.modules["set_of_columns"] = module = types.ModuleType("set_of_columns")
    module.samples = [sample(number) for number in range(COUNT)]  # type: ignore[attr-defined]
    source = DatasetSource("set_of_columns:samples", images="png")
    convert(source, folder, Options(shard_bytes=1 << 14), 1, lambda done, whole: None)
    return folder


def test_a_crop_keeps_all_columns(shards):
    seen = []
    for batch in Loader(shards, 4, shuffle=True, transform=CenterCrop(32, 32)):
        images, labels, captions, masks, boxes, points, sounds, scores = batch
        for turn, number in enumerate(labels.tolist()):
            seen.append(number)
            assert np.array_equal(images[turn].permute(1, 2, 0).numpy(), pixels(32, 32, number))
            assert captions[turn] == f"picture {number}"
            assert np.array_equal(masks[turn], np.full((32, 32), number))
            assert np.array_equal(boxes[turn], sample(number)["boxes"])
            assert points[turn].tolist() == [number, number]
            assert sounds[turn] == bytes([number]) * number
            assert scores[turn] == number / 4
        assert isinstance(points, torch.Tensor)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("how", [CenterCrop(16), None, dict])
def test_columns_that_are_asked_for_come_in_their_order(shards, how):
    loader = Loader(shards, 4, transform=how, columns=["label", "__key__", "image"], threads=0)
    for batch in loader:
        images, labels, names = (
            batch if isinstance(how, CenterCrop) else (batch["image"], batch["label"], batch["__key__"])
        )
        assert len(images) == 4
        assert list(names) == [f"set_of_columns:samples[{number}]" for number in labels.tolist()]
        assert isinstance(how, CenterCrop) or list(batch) == ["label", "__key__", "image"]


@pytest.mark.parametrize("columns", [["image", "lable"], "image"])
def test_a_column_that_is_not_there_is_refused(shards, columns):
    with pytest.raises(UsageError, match="there are image, label, caption"):
        Loader(shards, columns=columns)


def test_a_damaged_caption_makes_a_bad_sample(shards, tmp_path):
    import shutil

    damaged = tmp_path / "damaged"
    shutil.copytree(shards, damaged)
    path = next(path for path in sorted(damaged.glob("*.tar")) if b"picture 5" in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"picture 5", b"picture 6"))
    loader = Loader(damaged, COUNT, transform=CenterCrop(16), on_error="skip", threads=0)
    ((_, labels, captions, *_),) = loader
    assert 5 not in labels.tolist()
    assert captions == [f"picture {number}" for number in labels.tolist()]
    assert loader.report().bad_samples == 1


def test_worker_processes_give_the_same_columns(shards):
    loader = Loader(
        shards, 4, transform=lambda one: (one["label"], one["__key__"]), columns=["label", "__key__"], processes=1
    )
    for labels, names in loader:
        assert list(names) == [f"set_of_columns:samples[{number}]" for number in labels.tolist()]


GAPS: list[dict[str, object]] = [
    {"n": 1, "f": 0.5, "text": "a", "list": [1, "two"], "box": np.zeros((0, 4)), "image": Image.new("RGB", (8, 8))},
    {"n": None, "f": None, "text": None, "list": {"a": [None]}, "box": np.ones((2, 4)), "image": None},
    {"text": "", "list": []},
]


def same(one: object, other: object) -> bool:
    return (
        np.array_equal(np.asarray(one), np.asarray(other))
        if hasattr(other, "shape") or isinstance(other, Image.Image)
        else one == other
    )


@pytest.mark.parametrize("how", [{"threads": 0}, {"processes": 1}])
def test_what_a_sample_does_not_have_is_none(tmp_path, monkeypatch, how):
    monkeypatch.setitem(sys.modules, "set_of_gaps", module := types.ModuleType("set_of_gaps"))
    module.samples = GAPS * 4  # type: ignore[attr-defined]
    source = DatasetSource("set_of_gaps:samples", images="png")
    convert(source, tmp_path / "shards", Options(seed=None, shard_bytes=1 << 13), 1, lambda done, whole: None)
    loader = Loader(tmp_path / "shards", 3, transform=dict, collate_fn=list, **how)
    found = [one for batch in loader for one in batch]
    for one, truth in zip(found, GAPS * 4, strict=True):
        for name, value in one.items():
            assert same(value, truth.get(name)), name
    batch = next(iter(Loader(tmp_path / "shards", 3, columns=["n", "text", "list"])))
    assert batch == {"n": [1, None, None], "text": ["a", None, ""], "list": [[1, "two"], {"a": [None]}, []]}


@pytest.mark.parametrize("kind", ["webdataset", "tfrecord"])
def test_gaps_survive_other_formats(tmp_path, monkeypatch, kind):
    from paceline.data.convert.export import export
    from paceline.data.convert.verify import verify
    from paceline.data.reading.sharded import ShardedDataset
    from paceline.data.sources.found import source_of

    monkeypatch.setitem(sys.modules, "set_of_gaps", module := types.ModuleType("set_of_gaps"))
    module.samples = [{"n": 1, "f": 0.5, "text": "a"}, {"n": None, "f": None, "text": "b"}]  # type: ignore[attr-defined]
    convert(DatasetSource("set_of_gaps:samples"), tmp_path / "one", Options(seed=None), 1, lambda done, whole: None)
    export(ShardedDataset(tmp_path / "one"), tmp_path / "other", kind, lambda done, whole: None)
    convert(source_of(tmp_path / "other", None), tmp_path / "two", Options(seed=None), 1, lambda done, whole: None)
    for folder in ("one", "two"):
        assert verify(ShardedDataset(tmp_path / folder), lambda done, whole: None).problems == ()
        batch = next(iter(Loader(tmp_path / folder, 2)))
        assert (batch["n"], batch["f"], list(batch["text"])) == ([1, None], [0.5, None], ["a", "b"])
