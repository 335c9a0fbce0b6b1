"""Files in their own format give a loader the same samples as shards that were converted from them."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.making import folder_of_pictures, jpeg, pixels
from tests.data.sources.mds_writing import write_mds
from torch.utils.data import Subset

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data import CenterCrop, FileDataset, Loader, RandomResizedCrop, ShardedDataset
from paceline.data.convert.convert import Options, convert
from paceline.data.format.index import DamagedData
from paceline.data.reading import file_dataset
from paceline.data.sources import BadSample
from paceline.data.sources.found import source_of

COUNT = 26
ROWS = [
    {"image": jpeg(20 + number % 3, 24, number), "label": number % 5, "text": f"{number} ü"} for number in range(COUNT)
]


def write_images(path: Path) -> Path:
    return folder_of_pictures(path, COUNT)


def write_csv(path: Path) -> Path:
    path.mkdir()
    for number, row in enumerate(ROWS):
        (path / f"{number:02d}.jpg").write_bytes(row["image"])
    with (path / "all.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerows([("path", "label", "score"), *((f"{n:02d}.jpg", n % 5, n / 4) for n in range(COUNT))])
    return path / "all.csv"


def write_tars(path: Path, suffix: str = ".tar", mode: str = "w") -> Path:
    path.mkdir()
    for part in (0, 1):
        with tarfile.open(path / f"{part}{suffix}", mode) as archive:
            for number, row in list(enumerate(ROWS))[part::2]:
                for name, data in (("jpg", row["image"]), ("cls", str(row["label"]).encode())):
                    member = tarfile.TarInfo(f"{number:02d}.{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return path


def write_parquet(path: Path, **how: int) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, **how)
    return path


def write_parquet_in_groups(path: Path) -> Path:
    return write_parquet(path, row_group_size=2)  # 13 groups: more than stay in memory


def write_arrow(path: Path) -> Path:
    import pyarrow
    import pyarrow.ipc

    table = pyarrow.Table.from_pylist(ROWS)
    with pyarrow.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return path


def write_lines(path: Path) -> Path:
    lines = [
        {"a": n, "b": [n, None], "c": f"ü{n}", "d": n + (n % 2) / 2, **({"e": 1} if n == 7 else {})}
        for n in range(COUNT)
    ]
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def write_npz(path: Path) -> Path:
    np.savez(path, x=np.arange(COUNT * 6.0).reshape(COUNT, 2, 3), y=np.arange(COUNT))
    return path


def write_hdf5(path: Path) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(COUNT * 6.0).reshape(COUNT, 6), chunks=(2, 6))
        file["y"] = np.arange(COUNT)
    return path


def write_zarr(path: Path) -> Path:
    import zarr

    zarr.save_group(str(path), x=np.arange(COUNT * 6.0).reshape(COUNT, 6), y=np.arange(COUNT))
    return path


def write_mds_raw(path: Path, packed: str | None = None) -> Path:
    return write_mds(path, {"image": "jpeg", "label": "int", "text": "str"}, ROWS, 2, packed)


def write_mds_packed(path: Path) -> Path:
    return write_mds_raw(path, "zstd:7")


WITH_IMAGES = {
    "photos": write_images,
    "paths": write_csv,
    "tars": write_tars,
    "a.parquet": write_parquet_in_groups,
    "a.arrow": write_arrow,
    "mds": write_mds_raw,
    "packed": write_mds_packed,
}
KINDS = {**WITH_IMAGES, "a.jsonl": write_lines, "a.npz": write_npz, "a.h5": write_hdf5, "a.zarr": write_zarr}
kinds = pytest.mark.parametrize("name", KINDS)


def both(folder: Path, name: str, **how: object) -> tuple[FileDataset, ShardedDataset]:
    """The data set in its own format, and shards with the same order."""
    path = KINDS[name](folder / name)
    options = Options(**{"seed": None, "verbatim": True, **how})
    convert(source_of(path, None), folder / "shards", options, 1, lambda done, whole: None)
    return FileDataset(path), ShardedDataset(folder / "shards")


def same(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "dtype"):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and one == other


@kinds
def test_samples_are_those_of_converted_shards(tmp_path, name):
    files, shards = both(tmp_path, name)
    assert len(files) == len(shards) == COUNT
    assert [number for number in range(COUNT) if not same(shards[number], files[number])] == []
    assert list(files.classes) == list(shards.contents.classes)


@kinds
def test_batches_are_those_of_converted_shards(tmp_path, name):
    files, shards = both(tmp_path, name)
    settings = {"columns": [column.name for column in files.columns if column.name != "image"], "threads": 2}
    found = list(zip(Loader(shards, 4, **settings), Loader(files, 4, **settings), strict=True))
    assert found and all(same(one, other) for one, other in found)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("photos", "paths")])
def test_a_file_that_is_replaced_later_ends_the_next_epoch(tmp_path, name):
    path = KINDS[name](tmp_path / name)
    files = FileDataset(path)
    loader, loading = Loader(files, 4, threads=1, collate_fn=list), pickle.dumps(files)
    whole_epoch = [len(batch) for batch in loader]
    target = path if path.is_file() else max((one for one in path.rglob("*") if one.is_file()), key=os.path.getsize)
    os.utime(target, (1, 1))
    assert whole_epoch
    with pytest.raises(EnvironmentFault, match=f"a file of {path} was changed after FileDataset listed its samples"):
        list(loader)
    with pytest.raises(EnvironmentFault, match="make the FileDataset again"):
        pickle.loads(loading).check_unchanged()
    assert len(list(Loader(FileDataset(path), 4, collate_fn=list))) == len(whole_epoch)


@pytest.mark.parametrize("name", WITH_IMAGES)
@pytest.mark.parametrize("crop", [RandomResizedCrop(16), CenterCrop(12, 16)])
def test_crops_are_those_of_converted_shards(tmp_path, name, crop):
    files, shards = both(tmp_path, name, verbatim=False)
    settings = {"transform": crop, "threads": 2, "seed": 3}
    found = list(zip(Loader(shards, 4, **settings), Loader(files, 4, **settings), strict=True))
    assert found and all(same(list(one), list(other)) for one, other in found)


def keys_of(loader: Loader) -> list[list[str]]:
    return [batch["__key__"] for batch in loader]


@kinds
def test_any_number_of_ranks_goes_on_in_the_middle_of_an_epoch(tmp_path, name):
    data = FileDataset(KINDS[name](tmp_path / name))
    settings = {"shuffle": True, "seed": 5, "columns": ["__key__"], "threads": 2}
    whole = [key for batch in keys_of(Loader(data, 4, rank=0, world=1, **settings)) for key in batch]
    assert sorted(whole) == sorted(data.name(number) for number in range(COUNT)) and whole != sorted(whole)
    first = Loader(data, 4, rank=0, world=1, **settings)
    begun = [key for _, batch in zip(range(3), iter(first)) for key in batch["__key__"]]
    rest = []
    for rank in range(2):
        own = Loader(FileDataset(data.path), 2, rank=rank, world=2, **settings)
        own.load_state_dict(first.state_dict())
        rest.append(keys_of(own))
    steps = [key for both in zip(*rest, strict=True) for pair in zip(*both, strict=True) for key in pair]
    assert begun == whole[:12] and steps == whole[12:]


def test_samples_of_a_group_come_together_and_all_of_them_once(tmp_path):
    data = FileDataset(write_parquet(tmp_path / "a.parquet", row_group_size=2))
    settings = {"shuffle": True, "columns": ["__key__"], "lanes": 1, "threads": 0}
    rows = [int(batch["__key__"][0].split()[-1]) for batch in Loader(data, 1, window=1, **settings)]
    assert [row // 2 for row in rows[::2]] == [row // 2 for row in rows[1::2]]
    assert sorted(rows) == list(range(COUNT)) and rows[::2] != sorted(rows[::2])
    assert Loader(data, 1, shuffle=True).state_dict()["window"] == 1  # of each of 8 lanes: 8 groups stay in memory


def noisy(sample: dict) -> tuple[int, float]:
    return sample["label"], float(np.random.rand())


@pytest.mark.parametrize("name", ["a.parquet", "a.h5"])
def test_functions_that_draw_get_processes_and_draw_the_same_after_a_resume(tmp_path, name):
    data = FileDataset(KINDS[name](tmp_path / name))
    assert data[3]["label"] == 3  # a file is open before processes begin
    settings = {"shuffle": True, "transform": noisy, "collate_fn": list}
    one, other = Loader(data, 4, processes=2, **settings), Loader(data, 4, processes=1, **settings)
    whole = [pair for batch in one for pair in batch]
    begun = [pair for _, batch in zip(range(2), iter(other)) for pair in batch]
    state = other.state_dict()
    again = Loader(FileDataset(data.path), 4, processes=2, **settings)
    again.load_state_dict(state)
    assert begun + [pair for batch in again for pair in batch] == whole
    assert len({drawn for _, drawn in whole}) == COUNT


def picky(sample: dict) -> int:
    if sample["label"] == 3:
        raise ValueError("I do not like it")
    return sample["label"]


@pytest.mark.parametrize("how", [{"threads": 0}, {"processes": 1}])
def test_errors_of_functions_name_the_sample(tmp_path, how):
    data = FileDataset(write_npz(tmp_path / "a.npz"))
    with pytest.raises(ValueError, match="I do not like it") as caught:
        list(Loader(data, 4, transform=picky, **how))
    assert "a.npz[3]" in "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    loader = Loader(data, 4, transform=picky, on_error="skip", **how)
    assert [batch.tolist() for batch in loader][0] == [0, 1, 2, 0] and loader.report().bad_samples == 1


def test_a_subset_is_read_like_one_of_shards(tmp_path):
    files, shards = both(tmp_path, "photos")
    numbers = [3, 1, 20, 3]
    found = [list(Loader(Subset(data, numbers), 4, transform=CenterCrop(8))) for data in (files, shards)]
    assert same(*found)


def test_a_state_of_another_data_set_is_refused(tmp_path):
    one, other = FileDataset(write_npz(tmp_path / "a.npz")), FileDataset(write_npz(tmp_path / "b.npz"))
    with pytest.raises(UsageError, match="another data set"):
        Loader(one, 2).load_state_dict(Loader(other, 2).state_dict())


def test_a_damaged_sample_ends_the_loop_or_is_replaced(tmp_path):
    path = write_images(tmp_path / "photos")
    (damaged := path / "class1" / "004.jpg").write_bytes(damaged.read_bytes()[:-200])
    for transform in (CenterCrop(8), None):
        how = {"transform": transform, "columns": ["image", "label"], "collate_fn": None if transform else list}
        with pytest.raises((BadSample, DamagedData), match=r"class1/004.jpg.* cut off"):
            list(Loader(FileDataset(path), 4, **how))
        loader = Loader(FileDataset(path), 4, on_error="skip", **how)
        assert len(list(loader)) == 7 and loader.report().bad_samples == 1


def test_an_image_that_its_column_does_not_hold_is_an_error_unless_a_mode_is_given(tmp_path):
    path = tmp_path / "photos" / "class"
    path.mkdir(parents=True)
    for number in range(200):
        Image.fromarray(pixels(4, 4, number, 1)).save(path / f"{number:03d}.png")
    Image.fromarray(pixels(4, 4, 0)).save(path / "150.png")  # the only one in RGB, and none of those looked at
    data = FileDataset(path.parent)
    assert [column.mode for column in data.columns] == ["L", ""] and data[3]["image"].shape == (4, 4)
    with pytest.raises(BadSample, match="150.png: image: its mode is RGB.* image_mode='RGB'"):
        data[150]
    images = [batch["image"].shape for batch in Loader(data, 40, image_mode="RGB")]
    assert images == [(40, 4, 4, 3)] * 5


@pytest.mark.parametrize(
    "name, why",
    [
        ("photos", "each sample is a file of its own"),
        ("tars", "each sample is read and checked by itself"),
        ("a.parquet", "with its whole row group, and shuffle=True mixes 8 of them"),
        ("a.h5", "with its whole chunk, and shuffle=True mixes 8 of them"),
        ("packed", "with its whole compressed shard, and shuffle=True mixes 8 of them"),
    ],
)
def test_a_warning_says_once_why_it_is_slower_and_how_to_convert(tmp_path, caplog, monkeypatch, name, why):
    monkeypatch.setattr(file_dataset, "_warned", set())
    path = KINDS[name](tmp_path / name)
    with caplog.at_level(logging.WARNING, "paceline.data"):
        FileDataset(path), FileDataset(path)
    (said,) = (record.getMessage() for record in caplog.records)
    assert why in said and f"paceline data convert {path} SHARDS" in said


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda folder: FileDataset(write_tars(folder / "tars", ".tar.gz", "w:gz")), "compressed tars.*convert"),
        (lambda folder: FileDataset("s3://bucket/photos"), "on this machine"),
        (lambda folder: FileDataset(folder / "nothing"), "no file or folder"),
        (lambda folder: Loader(write_npz(folder / "a.npz")), r"is a file.*FileDataset\('.*a.npz'\)"),
        (lambda folder: Loader(write_images(folder / "photos")), r"another format.*FileDataset\('.*photos'\)"),
        (lambda folder: Loader(FileDataset(write_images(folder / "a")), decoded_cache="ram"), "for shards"),
        (lambda folder: Loader(FileDataset(write_npz(folder / "a.npz")), transform=CenterCrop(8)), "no image column"),
        (lambda folder: Loader(FileDataset(write_npz(folder / "a.npz")), columns=["z"]), "there are x, label"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_way_out(tmp_path, make, said):
    with pytest.raises(UsageError, match=said):
        make(tmp_path)
