"""Does each kind of source come over sample for sample? The command for each, run, and compared with plain Python.

    python benchmarks/kinds.py [--save]

Each kind is written by its own library to a small source with odd values: empty and long samples, names that are not
ASCII, missing values, the ends of ranges, NaN. `paceline data convert` converts it; `paceline.data.Loader` reads it.
The samples must be those that were written. The table is printed as Markdown. The exit code is 1 if a sample differs.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _machine import about
from PIL import Image

RESULTS = Path(__file__).parent / "results"
SCHEMA = "paceline.benchmark.kinds/1"
Truth = list[dict[str, Any]]
TEXTS = ["", "plain", "日本 é\n", "a\0b", "x" * 100_000]
WHOLE = [0, 1, -(2**63), 2**63 - 1, 7]
DECIMAL = [0.1, -0.0, 1e-320, 1.7e308, float("inf")]


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (8 + number, 9, 3), np.uint8)


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def class_folders(at: Path) -> Truth:
    truth = []
    for number in range(5):
        path = at / "src" / ["Ä b", "A", "a"][number % 3] / f"{number % 2} é.{'PNG' if number > 3 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
        truth.append({"image": pixels(number), "label": ["A", "a", "Ä b"].index(path.parent.name)})
    return truth


def flat_folder(at: Path) -> Truth:
    (at / "src").mkdir()
    for number in range(5):
        (at / "src" / f"{number}.png").write_bytes(png(number))
    return [{"image": pixels(number)} for number in range(5)]


def sound(at: Path) -> Truth:
    (at / "src").mkdir()
    data = [b"RIFF" + bytes([number]) * (10**number) for number in range(5)]
    for number, one in enumerate(data):
        (at / "src" / f"{number}.wav").write_bytes(one)
    return [{"audio": one} for one in data]


def video(at: Path) -> Truth:
    (at / "src").mkdir()
    (at / "src" / "ü.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
    return [{"video": b"\0\0\0\x18ftypmp42"}]


def table(at: Path) -> Truth:
    with (at / "src.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "id", "zip", "score", "note"])
        for number in range(5):
            (at / f"{number}.png").write_bytes(png(number))
            rows.writerow([f"{number}.png", 12345678901234567890 + number, "007", "" if number == 2 else 0.1, "a,\n é"])
    return [
        {"image": pixels(n), "id": str(12345678901234567890 + n), "zip": "007", "score": None if n == 2 else 0.1,
         "note": "a,\n é"} for n in range(5)
    ]  # fmt: skip


def coco(at: Path) -> Truth:
    images = [{"id": n * 7, "file_name": f"{n}.png", "license": None} for n in range(3)]
    for number in range(3):
        (at / f"{number}.png").write_bytes(png(number))
    boxes = [{"id": n, "image_id": 7, "category_id": 90, "bbox": [0.1, n, 2, 3]} for n in range(4)]
    told = {"images": images, "annotations": boxes, "categories": [{"id": 90, "name": "ü"}, {"id": 3, "name": "b"}]}
    (at / "src.json").write_text(json.dumps(told), encoding="utf-8")
    objects = [[], [one | {"label": 1} for one in boxes], []]
    return [{"image": pixels(n), "objects": objects[n], "fields": images[n]} for n in range(3)]


def tar_bytes() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, text in enumerate(TEXTS):
            for suffix, data in (("png", png(number)), ("txt", text.encode()), ("cls", b"%d" % number)):
                if (number, suffix) != (2, "cls"):
                    head = tarfile.TarInfo(f"é/{number}.{suffix}")
                    head.size = len(data)
                    archive.addfile(head, io.BytesIO(data))
    return file.getvalue()


def tar_truth() -> Truth:
    return [{"image": pixels(n), "txt": text, "label": None if n == 2 else n} for n, text in enumerate(TEXTS)]


def webdataset(at: Path) -> Truth:
    (at / "src.tar").write_bytes(tar_bytes())
    return tar_truth()


def packed_webdataset(at: Path) -> Truth:
    (at / "src.tar.gz").write_bytes(gzip.compress(tar_bytes()))
    return tar_truth()


def columns() -> dict[str, Any]:
    import pyarrow

    lists = [[1], [], [3, 4], [5], [6]]
    return {
        "text": TEXTS, "whole": WHOLE, "decimal": DECIMAL, "gap": [1, None, 2**60 + 1, None, 3],
        "data": pyarrow.array([b"", b"\0", b"a\0", png(0)[:4], b"x" * 1000]),
        "small": pyarrow.array(lists, pyarrow.list_(pyarrow.int8())), "names": [["a\0"], [], ["é"], [], ["b"]],
        "inner": [{"a": {"b": [None, 1.5]}}] * 4 + [None],
    }  # fmt: skip


def table_truth() -> Truth:
    import pyarrow

    rows = pyarrow.table(columns()).to_pylist()
    return [row | {"small": np.array(row["small"], np.int8)} for row in rows]


def parquet(at: Path) -> Truth:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns()), at / "src.parquet", row_group_size=2)
    return table_truth()


def arrow(at: Path) -> Truth:
    import pyarrow

    (at / "src").mkdir()
    made = pyarrow.table(columns())
    path = str(at / "src" / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, made.schema) as stream:
        stream.write_table(made, max_chunksize=2)
    return table_truth()


def arrays() -> dict[str, np.ndarray]:
    return {
        "big": np.arange(20, dtype=">i4").reshape(5, 4), "turned": np.asfortranarray(np.random.rand(5, 3, 2)),
        "empty": np.zeros((5, 0), np.float16), "whole": np.array(WHOLE), "decimal": np.array(DECIMAL),
        "complex": np.array([1j, 2, 3, 4, np.nan]), "yes": np.array([[True], [False], [True], [True], [False]]),
    }  # fmt: skip


def rows_of(found: dict[str, np.ndarray]) -> Truth:
    return [{name: values[n] for name, values in found.items()} for n in range(5)]


def npz(at: Path) -> Truth:
    found = arrays() | {"day": np.array(["2026-01-01", "NaT", "1700-01-01", "2000-01-01", "1970-01-01"], "M8[ns]")}
    np.savez(at / "src.npz", **found)
    return rows_of(found)


def npy(at: Path) -> Truth:
    (at / "src").mkdir()
    for name, values in (found := arrays()).items():
        np.save(at / "src" / f"{name}.npy", values)
    return rows_of(found)


def hdf5(at: Path) -> Truth:
    import h5py

    texts = [text.replace("\0", "") for text in TEXTS]
    ragged = [np.arange(n, dtype=np.int16) for n in range(5)]
    found = arrays()
    with h5py.File(at / "src.h5", "w") as file:
        for name, values in found.items():
            file.create_dataset(f"in/{name}", data=values, chunks=True if values.size else None)
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
        own = file.create_dataset("ragged", 5, h5py.vlen_dtype(np.int16))
        for number, row in enumerate(ragged):
            own[number] = row
    named = {f"in_{name}": values for name, values in found.items()}
    return [row | {"text": texts[n], "ragged": ragged[n]} for n, row in enumerate(rows_of(named))]


def zarr(at: Path) -> Truth:
    import zarr

    group = zarr.open_group(str(at / "src.zarr"), mode="w")
    found = {name: values for name, values in arrays().items() if values.size}
    for name, values in found.items():
        group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(2, *values.shape[1:]))[...] = values
    return rows_of(found)


def tfrecord(at: Path) -> Truth:
    from paceline.data.format import tfrecord as form

    with (at / "src.tfrecord").open("wb") as file:
        for text, whole in zip(TEXTS, WHOLE):
            features = {"text": [text.encode()], "whole": [whole], "list": [0.5] * (whole % 3)}
            file.write(form.framed(form.encoded(features)))
    return [{"text": t, "whole": w, "list": np.full(w % 3, 0.5, np.float32)} for t, w in zip(TEXTS, WHOLE)]


MODULE = """
import numpy as np
samples = [
    {"x": np.arange(6)[::-2], "t": "é", "n": None, "d": {"a": [1, {"b": None}]}, "f": 1, "m": np.datetime64("2026")},
    {"x": np.zeros((0, 2)), "t": "", "n": 2**60 + 1, "d": {}, "f": float("nan"), "m": np.datetime64("NaT", "Y")},
]
"""


def python_dataset(at: Path) -> Truth:
    (at / "my_data.py").write_text(MODULE, encoding="utf-8")
    found: dict[str, Any] = {}
    exec(MODULE, found)
    return found["samples"]


KINDS: dict[str, tuple[Callable[[Path], Truth], str]] = {
    "images, a folder per class": (class_folders, "src/"),
    "images, one folder": (flat_folder, "src/"),
    "sound (as bytes)": (sound, "src/"),
    "video (as bytes)": (video, "src/"),
    "CSV of paths": (table, "src.csv"),
    "COCO": (coco, "src.json"),
    "WebDataset": (webdataset, "src.tar"),
    "WebDataset, compressed": (packed_webdataset, "src.tar.gz"),
    "Parquet": (parquet, "src.parquet"),
    "Arrow, Hugging Face's save_to_disk": (arrow, "src/"),
    "`.npz`": (npz, "src.npz"),
    "folder of `.npy`": (npy, "src/"),
    "HDF5, ragged too": (hdf5, "src.h5"),
    "Zarr": (zarr, "src.zarr/"),
    "TFRecord": (tfrecord, "src.tfrecord"),
    "Python Dataset": (python_dataset, "--dataset my_data:samples"),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | np.generic) or isinstance(other, np.ndarray | np.generic):
        one, other = np.asarray(one), np.asarray(other)
        nan = one.dtype.kind in "fcmM" and other.dtype.kind in "fcmM"
        return one.shape == other.shape and np.array_equal(one, other, equal_nan=nan)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other or (one == other and isinstance(one, float | int))


def differences(truth: Truth, found: Truth) -> list[str]:
    if len(truth) != len(found):
        return [f"{len(found)} samples, {len(truth)} were written"]
    left, faults = list(found), []
    for number, row in enumerate(truth):
        fits = [one for one in left if set(one) == set(row) and all(same(row[name], one[name]) for name in row)]
        if fits:
            left = [one for one in left if one is not fits[0]]
        else:
            faults.append(f"sample {number} ({', '.join(row)}) did not come over")
    return faults


def loaded(folder: Path) -> Truth:
    from paceline.data import Loader

    batches = Loader(folder, 2, threads=0, exact=True, transform=lambda one: one, collate_fn=list)
    return [dict(one) for batch in batches for one in batch]


def checked(name: str, work: Path) -> dict[str, Any]:
    make, source = KINDS[name]
    at = work / str(len(list(work.iterdir())))
    at.mkdir()
    truth = make(at)
    command = ["paceline", "data", "convert", *source.split(), "out/"]
    run = [sys.executable, "-m", *command]
    done = subprocess.run(run, cwd=at, capture_output=True, text=True, check=False)
    faults = [done.stderr.strip()[-300:]] if done.returncode else differences(truth, loaded(at / "out"))
    return {"kind": name, "command": " ".join(command), "samples": len(truth), "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write the result to benchmarks/results/")
    asked, machine = parser.parse_args(), about(("h5py", "numpy", "pyarrow", "zarr"))
    with tempfile.TemporaryDirectory(prefix="paceline-kinds-") as work:
        rows = [checked(name, Path(work)) for name in KINDS]
    print("| kind | command | samples that came over |\n|---|---|---|")
    for row in rows:
        print(f"| {row['kind']} | `{row['command']}` | {row['samples'] - len(row['faults'])} of {row['samples']} |")
        for fault in row["faults"]:
            print(f"{row['kind']}: {fault}", file=sys.stderr)
    if asked.save:
        text = json.dumps({"schema": SCHEMA, **machine, "kinds": rows}, indent=1)
        (RESULTS / f"kinds-{machine['date']}.json").write_text(text + "\n", encoding="utf-8")
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
