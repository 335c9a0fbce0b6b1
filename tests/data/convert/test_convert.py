"""From files to shards: the same samples, readable by any program, in spite of interruptions and bad files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from tests.data.making import converted, folder_of_pictures, jpeg

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.convert.convert import Options, convert, fingerprint
from paceline.data.convert.lossless import in_intervals
from paceline.data.convert.resuming import PLAN_FILE
from paceline.data.convert.verify import verify
from paceline.data.format.contents import read_contents
from paceline.data.format.index import DamagedData
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources import BadSample
from paceline.data.sources.dataset import DatasetSource
from paceline.data.sources.image_folder import image_folder
from paceline.data.sources.table import file_table


def quiet(done: int, whole: int) -> None:
    pass


def samples_of(dataset: ShardedDataset) -> dict[str, tuple[bytes, int]]:
    places = dataset.places(np.arange(len(dataset)))
    labels = dataset.numbers("label", places).tolist()
    names = {place: dataset.index(place.shard).names[place.row] for place in places}
    return {names[p]: (dataset.payload("image", p), label) for p, label in zip(places, labels)}


def test_every_file_is_there_byte_by_byte_with_its_label(tmp_path):
    dataset = converted(tmp_path)
    found, root = samples_of(dataset), tmp_path / "pictures"
    assert len(dataset.contents.shards) > 2
    assert len(found) == len(dataset) == 24
    assert all(data == (root / name).read_bytes() for name, (data, _) in found.items())
    assert all(name.startswith(f"class{label}/") for name, (_, label) in found.items())
    assert dataset.contents.classes == ["class0", "class1", "class2"]


def test_any_program_reads_the_tars(tmp_path):
    """As WebDataset does: files of a sample follow each other and share a name up to the first dot."""
    dataset = converted(tmp_path)
    seen = {}
    for shard in dataset.contents.shards:
        with tarfile.open(dataset.folder / shard.file) as archive:
            for member in archive:
                key, _, suffix = member.name.partition(".")
                seen.setdefault(key, {})[suffix] = archive.extractfile(member).read()
    assert len(seen) == 24
    assert all(set(one) in ({"jpg", "cls"}, {"png", "cls"}) for one in seen.values())
    by_bytes = dict(samples_of(dataset).values())
    assert all(by_bytes[one.get("jpg") or one["png"]] == int(one["cls"]) for one in seen.values())


def test_blocks_tile_the_samples(tmp_path):
    dataset = converted(tmp_path)
    blocks = dataset.blocks
    assert blocks["first"][0] == 0
    assert (np.diff(blocks["first"]) > 0).all()
    for place, number in zip(dataset.places(np.arange(len(dataset))), range(len(dataset))):
        own = blocks[np.searchsorted(blocks["first"], number, side="right") - 1]
        arrays = dataset.index(place.shard).arrays
        begin = arrays["image.offset"][place.row]
        assert own["shard"] == place.shard
        assert own["begin"] <= begin and begin + arrays["image.length"][place.row] <= own["end"]


def test_seeds_mix_and_without_one_the_order_stays(tmp_path):
    source = image_folder(folder_of_pictures(tmp_path / "pictures"))
    orders = []
    for number, seed in enumerate((0, 0, 1, None)):
        dest = tmp_path / str(number)
        convert(source, dest, Options(seed=seed, verbatim=True), 1, quiet)
        orders.append(ShardedDataset(dest).index(0).names)
    assert orders[0] == orders[1] != orders[2]
    assert orders[3] == [source.name(number) for number in range(len(source))]


def test_processes_make_the_same_bytes(tmp_path):
    source = image_folder(folder_of_pictures(tmp_path / "pictures", 40))
    for processes in (1, 2):
        convert(source, tmp_path / str(processes), Options(shard_bytes=1 << 15), processes, quiet)
    one, two = (sorted((tmp_path / name).glob("shard*")) for name in ("1", "2"))
    assert [path.name for path in one] == [path.name for path in two]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two))


def test_a_table_of_paths_and_labels(tmp_path):
    folder_of_pictures(tmp_path / "pictures", 4)
    (tmp_path / "t.csv").write_text("Label,path\ncat,pictures/class0/000.jpg\nant,pictures/class1/001.jpg\n")
    source = file_table(tmp_path / "t.csv")
    assert (list(source.classes), source.labels) == (["ant", "cat"], [1, 0])
    (tmp_path / "n.csv").write_text("file,class\npictures/class0/000.jpg,7\n")
    assert (list(file_table(tmp_path / "n.csv").classes), file_table(tmp_path / "n.csv").labels) == ([], [7])
    (tmp_path / "bad.csv").write_text("picture,class\nx,7\n")
    with pytest.raises(UsageError, match="one must be called path or file"):
        file_table(tmp_path / "bad.csv")


def test_a_dataset_of_python(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "class Ten:\n"
        "    def __len__(self): return 10\n"
        "    def __getitem__(self, i): return np.full((2, 3), i, np.float32), i % 3, f'text {i}', i / 2\n"
        "ten = Ten()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    convert(DatasetSource("mine:ten"), tmp_path / "shards", Options(seed=None), 1, quiet)
    dataset = ShardedDataset(tmp_path / "shards")
    columns = [(column.name, column.kind) for column in dataset.contents.columns]
    assert columns == [("part0", "array"), ("label", "int"), ("part2", "text"), ("part3", "float")]
    places = dataset.places(np.arange(10))
    assert dataset.numbers("part3", places).tolist() == [i / 2 for i in range(10)]
    assert dataset.payload("part2", places[4]) == b"text 4"
    for name, said in (("mine", "write MODULE:NAME"), ("mine:nine", "no attribute"), ("mine:Ten", "__len__")):
        if name != "mine:Ten":
            with pytest.raises(UsageError, match=said):
                DatasetSource(name)


@pytest.mark.parametrize("skip", [False, True])
def test_a_file_that_cannot_be_read(tmp_path, skip):
    source = image_folder(folder_of_pictures(tmp_path / "pictures"))
    (tmp_path / "pictures" / source.name(5)).write_bytes(b"")
    options = Options(on_error="skip" if skip else "raise", shard_bytes=1 << 15)
    if not skip:
        with pytest.raises(BadSample, match=f"{source.name(5)} is empty"):
            convert(source, tmp_path / "shards", options, 1, quiet)
        assert not (tmp_path / "shards" / "dataset.json").exists()
        return
    made = convert(source, tmp_path / "shards", options, 1, quiet)
    assert made.contents.samples == 23
    assert [source.name(5) in text for text in made.skipped] == [True]


def test_a_killed_conversion_goes_on_where_it_was(tmp_path):
    """Killed between shards: what is there stays as it is, the rest comes, and nothing else is left."""
    folder_of_pictures(tmp_path / "pictures", 120)
    command = [sys.executable, "-m", "paceline", "data", "convert", "pictures", "shards", "--shard-mb", "0.01"]
    process = subprocess.Popen([*command, "--processes", "1"], cwd=tmp_path, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not list((tmp_path / "shards").glob(".shard-*.tar.made.json")) and time.monotonic() < until:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    tars = (tmp_path / "shards").glob("shard-*.tar")
    noted = [path for path in tars if path.with_name(f".{path.name}.made.json").exists()]
    there = {path.name: path.stat().st_mtime_ns for path in noted}
    assert there and not (tmp_path / "shards" / "dataset.json").exists()
    with pytest.raises(UsageError, match="its conversion is unfinished"):
        read_contents(tmp_path / "shards")
    done = subprocess.run([*command, "--processes", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re_there(done.stdout) == len(there)
    dataset = ShardedDataset(tmp_path / "shards")
    assert len(samples_of(dataset)) == 120
    assert all((dataset.folder / name).stat().st_mtime_ns == time_ns for name, time_ns in there.items())
    known = {name for shard in dataset.contents.shards for name in (shard.file, shard.index)}
    assert {path.name for path in dataset.folder.iterdir()} == known | {"dataset.json", "blocks.npy"}


class Stop(Exception):
    """Ends a conversion in the middle."""


def interrupted(source, dest, options: Options, after: int) -> None:
    """Convert until so many samples are done."""

    def stop(done: int, whole: int) -> None:
        if done >= after:
            raise Stop

    with pytest.raises(Stop):
        convert(source, dest, options, 1, stop)


@pytest.mark.parametrize("harm", ["cut off", "changed", "index"])
def test_a_shard_that_is_not_what_was_written_is_made_again(tmp_path, harm):
    """Between a kill and the command that resumes, a disk may lose or change bytes."""
    source, options = image_folder(folder_of_pictures(tmp_path / "pictures", 60)), Options(shard_bytes=1 << 15)
    interrupted(source, tmp_path / "shards", options, 40)
    first = tmp_path / "shards" / "shard-000000.tar"
    whole = first.read_bytes()
    if harm == "cut off":
        first.write_bytes(whole[:-2048])
    elif harm == "changed":
        first.write_bytes(whole[:700] + b"!" + whole[701:])
    else:
        index = next((tmp_path / "shards").glob("shard-000000*[!r]"))
        index.write_bytes(index.read_bytes()[:-3])
    convert(source, tmp_path / "shards", options, 1, quiet)
    assert first.read_bytes() == whole
    assert verify(ShardedDataset(tmp_path / "shards"), lambda done, whole: None).problems == ()


def test_a_source_that_changed_at_the_same_size_is_not_mixed_in(tmp_path):
    source, options = image_folder(folder_of_pictures(tmp_path / "pictures", 60)), Options(shard_bytes=1 << 15)
    interrupted(source, tmp_path / "shards", options, 40)
    for number in range(60):
        path = tmp_path / "pictures" / source.name(number)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UsageError, match="an unfinished conversion of another source"):
        convert(source, tmp_path / "shards", options, 1, quiet)


def test_two_conversions_into_one_folder_do_not_meet(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.data.convert.resuming.WAIT_S", 0.1)
    source, options = image_folder(folder_of_pictures(tmp_path / "pictures", 60)), Options(shard_bytes=1 << 15)
    refused = []

    def second(done: int, whole: int) -> None:
        if done and not refused:
            with pytest.raises(UsageError, match="another process converts into") as caught:
                convert(source, tmp_path / "shards", options, 1, quiet)
            refused.append(caught)

    convert(source, tmp_path / "shards", options, 1, second)
    assert refused
    assert verify(ShardedDataset(tmp_path / "shards"), lambda done, whole: None).samples == 60


@pytest.mark.parametrize(
    ("source", "case", "step"),
    [(source, *case) for source in ("pictures", "text") for case in (("kill", 1), ("change", 4), ("two", 11))],
)
def test_a_kill_at_any_effect_on_files_leaves_the_same_data_set_or_a_refusal(tmp_path, source, case, step):
    command = [sys.executable, "-m", "tests.data.kill_points", source, case, str(tmp_path), str(step)]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    assert found["faults"] == []
    assert found["points"] > 25 // step


def test_a_source_that_changes_while_it_is_converted_is_refused(tmp_path):
    source, options = image_folder(folder_of_pictures(tmp_path / "pictures")), Options(shard_bytes=1 << 15)
    path = tmp_path / "pictures" / source.name(23)

    def change(done: int, whole: int) -> None:
        if done == 5:
            path.write_bytes(jpeg(40, 48, 99))

    with pytest.raises(UsageError, match="the source changed while it was converted"):
        convert(source, tmp_path / "shards", options, 1, change)
    assert not (tmp_path / "shards" / "dataset.json").exists()


def started(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A conversion by two workers that has finished a shard, and its workers."""
    folder_of_pictures(folder / "pictures", 400)
    command = [sys.executable, "-m", "paceline", "data", "convert", "pictures", "shards", "--shard-mb", "0.01"]
    process = subprocess.Popen([*command, "--processes", "2"], cwd=folder, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list((folder / "shards").glob(".shard-*.made.json")) and time.monotonic() < until:
        time.sleep(0.005)
    return process, [one for one in psutil.Process(process.pid).children() if "spawn_main" in command_of(one)]


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_no_conversion_begins_while_a_worker_of_a_killed_one_lives(tmp_path, monkeypatch):
    process, workers = started(tmp_path)
    for worker in workers:
        worker.suspend()
    process.kill()
    process.wait()
    process.stderr.close()
    source, options = image_folder(tmp_path / "pictures"), Options(shard_bytes=int(0.01 * (1 << 20)))
    monkeypatch.setattr("paceline.data.convert.resuming.WAIT_S", 0.2)
    try:
        with pytest.raises(UsageError, match="another process converts into"):
            convert(source, tmp_path / "shards", options, 1, quiet)
    finally:
        for worker in workers:
            worker.resume()
    monkeypatch.setattr("paceline.data.convert.resuming.WAIT_S", 30.0)  # they end by themselves
    convert(source, tmp_path / "shards", options, 1, quiet)
    assert verify(ShardedDataset(tmp_path / "shards"), quiet).samples == 400
    assert not [path for path in (tmp_path / "shards").iterdir() if path.name.startswith(".")]


def test_a_worker_that_was_killed_is_told(tmp_path):
    process, workers = started(tmp_path)
    workers[0].kill()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "a process that converts was killed" in said and "Traceback" not in said


def test_a_killed_jpegtran_changes_no_sample(tmp_path, monkeypatch):
    """Kept as it was, the picture would be converted, but not as without the kill."""
    program = tmp_path / "jpegtran"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr("paceline.data.convert.lossless.jpegtran", lambda: str(program))
    with pytest.raises(EnvironmentFault, match="jpegtran was killed"):
        in_intervals(jpeg(64, 64))
    program.write_text("no program")
    with pytest.raises(EnvironmentFault, match="cannot start"):
        in_intervals(jpeg(64, 64))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_parent(tmp_path, how):
    process, workers = started(tmp_path)
    process.send_signal(how)
    process.wait()
    process.stderr.close()
    assert workers
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []


def re_there(text: str) -> int:
    return int(text.partition(" of them converted before")[0].rpartition(" ")[2])


def test_folders_that_hold_something_else(tmp_path):
    source = image_folder(folder_of_pictures(tmp_path / "pictures"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("all of it")
    with pytest.raises(UsageError, match="exists and is not empty"):
        convert(source, tmp_path / "other", Options(), 1, quiet)
    convert(source, tmp_path / "shards", Options(verbatim=True), 1, quiet)
    with pytest.raises(UsageError, match="holds a data set of 24 samples"):
        convert(source, tmp_path / "shards", Options(verbatim=True), 1, quiet)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / PLAN_FILE).write_text('{"fingerprint": "another"}')
    with pytest.raises(UsageError, match="an unfinished conversion"):
        convert(source, tmp_path / "begun", Options(), 1, quiet)


def test_what_is_no_source(tmp_path):
    for arguments, said in (
        (["nowhere", "shards"], "no file or folder nowhere"),
        ([str(tmp_path), "shards"], "no images in"),
        (["shards"], "expected SRC and DEST"),
        (["a", "shards", "--dataset", "m:n"], "replaces SRC"),
    ):
        command = [sys.executable, "-m", "paceline", "data", "convert", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_full_disk_leaves_nothing_half_done(tmp_path):
    """On a disk of 200 kB (a mount of its own, where that is allowed)."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        folder_of_pictures(tmp_path / "pictures", 400)
        command = [sys.executable, "-m", "paceline", "data", "convert", "pictures", str(disk / "shards")]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2
        assert "free some space" in done.stderr
        assert not list(disk.rglob("*.tar"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    "harm, said",
    [
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), "is truncated"),
        (lambda path: wound(path, 700), "image is damaged: its checksum does not match"),
        (lambda path: path.unlink(), "is missing, with its"),
        (lambda path: path.with_suffix(".npz").unlink(), "the index of"),
        (lambda path: wound(path.with_suffix(".npz"), 400), "is damaged"),
    ],
)
def test_damage_is_found_and_named(tmp_path, harm, said):
    dataset = converted(tmp_path)
    assert verify(dataset, quiet).problems == ()
    harm(dataset.folder / dataset.contents.shards[1].file)
    found = verify(ShardedDataset(dataset.folder), quiet)
    assert any(said in text for text in found.problems)
    assert all(dataset.contents.shards[1].file.removesuffix(".tar") in text for text in found.problems)
    assert found.samples < 24
    command = [sys.executable, "-m", "paceline", "data", "verify", str(dataset.folder)]
    assert subprocess.run(command, capture_output=True).returncode == 1


def test_damage_between_samples_is_found_too(tmp_path):
    dataset = converted(tmp_path)
    wound(dataset.file(1), 200)  # in the header of a file in the tar, which we do not need
    found = verify(dataset, quiet)
    assert found.samples == 24
    assert all("shard-000001.tar" in text for text in found.problems)
    assert found.problems


def wound(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_a_newer_or_broken_description(tmp_path):
    dataset = converted(tmp_path)
    path = dataset.folder / "dataset.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "schema": "paceline.data/9"}))
    with pytest.raises(DamagedData, match="a newer Paceline may read it"):
        ShardedDataset(dataset.folder)
    path.write_text("{")
    with pytest.raises(DamagedData, match="cannot be read"):
        ShardedDataset(dataset.folder)
    path.write_text(json.dumps(said))
    (dataset.folder / "blocks.npy").unlink()
    with pytest.raises(DamagedData, match="--repair"):
        ShardedDataset(dataset.folder)
    command = [sys.executable, "-m", "paceline", "data", "verify", str(dataset.folder), "--repair"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert np.array_equal(ShardedDataset(dataset.folder).blocks, dataset.blocks)


def test_jpegs_get_intervals_and_keep_their_pixels(tmp_path):
    from paceline.data.convert.lossless import jpegtran

    if jpegtran() is None:
        pytest.skip("jpegtran (libjpeg-turbo-progs) is not installed")
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    (tmp_path / "pictures" / "a" / "1.jpg").write_bytes(jpeg(100, 80, progressive=True))
    convert(image_folder(tmp_path / "pictures"), tmp_path / "shards", Options(), 1, quiet)
    dataset = ShardedDataset(tmp_path / "shards")
    rows = -(-100 // 16)  # each of 5 units of 16 pixels: one interval
    assert len(dataset.index(0).arrays["image.intervals"]) == rows + 1


def test_names_of_files_may_be_any_bytes(tmp_path):
    folder = tmp_path / "pictures" / "a"
    folder.mkdir(parents=True)
    for name in (b"caf\xe9.jpg", b"two\nlines.jpg", "\u00fcber.jpg".encode()):
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(jpeg(20, 20))
    command = [sys.executable, "-m", "paceline", "data"]
    done = subprocess.run([*command, "convert", "pictures", "shards"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    dataset = ShardedDataset(tmp_path / "shards")
    assert {os.fsencode(name) for name in dataset.index(0).names} == {
        b"a/caf\xe9.jpg", b"a/two\nlines.jpg", "a/\u00fcber.jpg".encode()
    }  # fmt: skip
    assert verify(dataset, quiet).problems == ()
    wound(dataset.file(0), 700)
    done = subprocess.run([*command, "verify", "shards"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2  # the tar, and one sample


def test_labels_that_changed_make_it_another_conversion(tmp_path):
    """Interrupted, and the table has other labels since: shards of both would be wrong together."""
    folder_of_pictures(tmp_path / "pictures", 3)
    table = tmp_path / "t.csv"
    table.write_text("path,label\npictures/class0/000.jpg,1\n")
    before = fingerprint(file_table(table), Options())
    table.write_text("path,label\npictures/class0/000.jpg,2\n")
    assert fingerprint(file_table(table), Options()) != before


def test_shards_are_not_written_into_what_is_read(tmp_path):
    folder_of_pictures(tmp_path / "pictures", 3)
    command = [sys.executable, "-m", "paceline", "data", "convert", "pictures", "pictures/shards"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "name a folder elsewhere" in done.stderr) == (2, True)
    assert not (tmp_path / "pictures" / "shards").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"a": 1, "when": datetime(2020, 1, 1), "text": "x"}', r"\[0\]: when: a sample has a datetime"),
        ('(1, (1, 2), "x")', r"\[0\]: part1: a sample has a tuple"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_value_of_an_unsupported_type_is_named(tmp_path, monkeypatch, value, said, on_error):
    name = f"odd_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(f"from datetime import datetime\nrows = [{value}] * 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadSample, match=said):
        convert(DatasetSource(f"{name}:rows"), tmp_path / "shards", Options(on_error=on_error), 1, quiet)


def test_a_conversion_that_skips_all_samples_says_so(tmp_path):
    (tmp_path / "pictures" / "a").mkdir(parents=True)
    for number in range(3):
        (tmp_path / "pictures" / "a" / f"{number}.jpg").write_bytes(b"no image")
    source = image_folder(tmp_path / "pictures")
    with pytest.raises(UsageError, match="none of the 3 samples can be read; the first: .*jpg"):
        convert(source, tmp_path / "shards", Options(on_error="skip"), 1, quiet)


def test_a_class_whose_folder_is_not_utf8_is_refused(tmp_path):
    folder = os.fsencode(tmp_path / "pictures") + b"/\xff"
    os.makedirs(folder)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    os.rename(tmp_path / "a.png", folder + b"/a.png")
    with pytest.raises(UsageError, match="class .*udcff is not UTF-8; rename its folder"):
        convert(image_folder(tmp_path / "pictures"), tmp_path / "shards", Options(), 1, quiet)
    assert not (tmp_path / "shards").exists()
