"""What a program writes in a trial goes elsewhere; what was there stays; the program notices nothing."""

from __future__ import annotations

import sqlite3

import pytest

from paceline.inprocess.sandbox.write_sandbox import free_places

SOURCE = """
import json, os, shutil, tempfile
from pathlib import Path
import torch

out = Path("out")
out.mkdir(exist_ok=True)
with open(out / "log.txt", "a") as log:
    log.write("more\\n")
print((out / "log.txt").read_text().split())
for step in range(3):
    torch.save({"step": torch.tensor(step)}, out / "new.pt.part")
    os.replace(out / "new.pt.part", out / f"step{step}.pt")
for old in sorted(out.glob("*.pt"))[:-1]:
    old.unlink()
print(sorted(p.name for p in out.iterdir()), sorted(os.listdir("out")), sorted(e.name for e in os.scandir("out")))
print(torch.load(out / "step2.pt")["step"].item(), os.path.exists("out/best.pt"), os.path.isdir("runs"))
os.makedirs("runs/a/b", exist_ok=True)
Path("runs/a/b/events").write_text("x")
try:
    os.mkdir("runs")
except FileExistsError:
    print("there already")
shutil.rmtree("runs")
print(os.path.exists("runs"))
try:
    open("nowhere/file", "w")
except FileNotFoundError:
    print("no such folder")
try:
    open("out/best.pt")
except FileNotFoundError:
    print("deleted")
with tempfile.TemporaryDirectory() as place:
    Path(place, "x").write_text("y")
with open("out/conf.json", "r+") as file:
    found = json.load(file)
    file.seek(0)
    json.dump(found | {"lr": 2}, file)
print(json.loads(Path("out/conf.json").read_text()))
os.remove("out/conf.json")
try:
    os.remove("out/conf.json")
except FileNotFoundError:
    print("deleted once")
"""


def tree(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file() and "run" not in p.parts}


def prepared(tmp_path):
    (tmp_path / "out").mkdir()
    for name, text in (("log.txt", "first\n"), ("best.pt", "mine"), ("conf.json", '{"lr": 1}')):
        (tmp_path / "out" / name).write_text(text)


def test_a_program_that_writes_renames_and_deletes_leaves_everything_as_it_was(ran, tmp_path):
    prepared(tmp_path)
    before = tree(tmp_path)
    scratch = tmp_path / "run" / "scratch"
    changed = ran(SOURCE, {}, scratch=scratch)
    assert changed.code == 0, changed.err
    after = tree(tmp_path)
    after.pop(next(p for p in after if p.name == "train.py"))
    assert after == before
    assert any(p.name == "step2.pt" for p in scratch.rglob("*"))
    bare = ran(SOURCE)
    assert changed.out == bare.out  # and it sees what it would see without


def test_without_a_scratch_folder_files_are_the_programs(ran, tmp_path):
    prepared(tmp_path)
    assert ran(SOURCE, {}).code == 0
    assert (tmp_path / "out" / "step2.pt").exists()
    assert not (tmp_path / "out" / "best.pt").exists()


FOLDERS = """
import os, shutil, subprocess, sys, tarfile, tempfile
from pathlib import Path

Path("out/sub/more").mkdir(parents=True)  # a folder that is there, and a new one in it
Path("out/sub/more/new").write_text("n")
print(sorted(str(p) for p in Path("out").rglob("*")), sorted((d, sorted(f)) for d, _, f in os.walk("out")))
for remove, path in ((os.rmdir, "out"), (os.remove, "out"), (os.rmdir, "log"), (os.remove, "none")):
    try:
        remove(path)
    except OSError as error:
        print(remove.__name__, path, error.errno)
shutil.rmtree("out")
print(os.path.exists("out"), os.path.exists("out/best"))
os.makedirs("out/sub")
print(os.listdir("out"), os.listdir("out/sub"), os.path.exists("out/sub/x"))  # nothing of before shows again
os.rename("data", "moved")
print(os.listdir("moved"), os.path.exists("data"), open("moved/set").read())
os.remove("latest")
os.symlink("run1", "latest")
os.mkdir("run1")
Path("latest/ck").write_text("c")
print(os.listdir("run1"), os.path.islink("latest"))
try:
    os.symlink("run1", "latest")
except FileExistsError:
    print("there already")
here = os.getcwd()
os.makedirs("hydra/1")
os.chdir("hydra/1")
Path("log").write_text("h")
print(os.path.relpath(os.getcwd(), here), os.listdir(), open("../../log").read())
os.chdir("../..")
with tarfile.open("a.tar", "w") as tar:
    tar.add("moved")
shutil.copytree("moved", "copied")
shutil.copytree("moved", "copied with links", symlinks=True)
shutil.copy2("log", "copied/log")
shutil.move("copied", "run1/in")
print(sorted(os.listdir("run1/in")), sorted(e.path for e in os.scandir("run1")), sorted(os.listdir(b".")))
with tempfile.NamedTemporaryFile(dir="out", delete=False) as file:
    pass
os.replace(file.name, "out/final")
folder = os.open("out", os.O_RDONLY)
os.unlink("final", dir_fd=folder)
print(os.listdir("out"))
os.chmod("log", 0o600)
print(oct(os.stat("log").st_mode))
os.link("log", "second")
with open("second", "a") as file:
    file.write("more")
print(open("log").read())
subprocess.run([sys.executable, "-c", "open('log', 'a').write('!'); open('child', 'w')"], check=True)
print(open("log").read(), os.path.exists("child"))
"""


def test_folders_links_and_other_processes(ran, tmp_path):
    """Not one file that was there may be lost: scripts begin with `shutil.rmtree(out)`."""
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    for name in ("out/best", "out/sub/x", "data/set", "log"):
        (tmp_path / name).write_text(name)
    (tmp_path / "latest").symlink_to("run0")
    before = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*")}
    changed = ran(FOLDERS, {}, scratch=tmp_path / "run" / "scratch")
    assert changed.code == 0, changed.err
    after = {p: p.lstat().st_mtime_ns for p in tmp_path.rglob("*") if "run" not in p.parts}
    after.pop(tmp_path / "train.py")
    assert after == before
    assert ran(FOLDERS).out == changed.out


def test_a_file_that_would_fill_the_disk_is_not_copied(ran, tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 43)  # 8 TiB, of which nothing is on the disk
    changed = ran("open('huge', 'r+b')", {}, scratch=tmp_path / "run" / "scratch")
    assert "there is no room for one" in changed.err
    assert ran("print(len(open('huge', 'rb').read(8)))", {}, scratch=tmp_path / "run" / "scratch").out == "8\n"


def test_caches_are_written_as_always_and_never_what_lies_around_the_program():
    variables = {"HF_HOME": "/big/hf", "TORCH_HOME": ".", "XDG_CACHE_HOME": "/home/me"}
    places = free_places(variables, "/home/me/project")
    assert "/big/hf" in places
    assert not any("/home/me/project/x".startswith(place) for place in places)


IN_C = """
import os, sqlite3
import torch

for _ in range(2):
    runs = sqlite3.connect("runs.db")
    runs.execute("create table if not exists runs (loss)")
    runs.execute("insert into runs values (1)")
    runs.commit()
    print(runs.execute("select count(*) from runs").fetchall())
    runs.close()
print(sqlite3.connect("file:runs.db?mode=ro", uri=True).execute("select count(*) from runs").fetchall())
print(sqlite3.connect(":memory:").execute("select 1").fetchall())
model = torch.jit.script(torch.nn.Linear(2, 2))
model.save("model.pt")
torch.jit.save(model, f="again.pt")
print(sum(p.numel() for p in torch.jit.load("model.pt").parameters()))
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
    torch.ones(2) + 1
profiled.export_chrome_trace("trace.json")
print(sorted(name for name in os.listdir() if name != "run"))
"""


def test_what_databases_and_torch_write_from_c_goes_there_too(ran, tmp_path):
    runs = sqlite3.connect(tmp_path / "runs.db")
    runs.execute("create table runs (loss)")
    runs.commit()
    runs.close()
    before = tree(tmp_path)
    changed = ran(IN_C, {}, scratch=tmp_path / "run" / "scratch")
    assert changed.code == 0, changed.err
    after = tree(tmp_path)
    after.pop(next(p for p in after if p.name == "train.py"))
    assert after == before
    assert changed.out == ran(IN_C).out


@pytest.mark.parametrize(
    "library, line",
    [
        ("h5py", "h5py.File('x.h5', 'a').create_dataset('a', data=[1]); print(list(h5py.File('x.h5')))"),
        ("cv2", "cv2.imwrite('x.png', __import__('numpy').zeros((2, 2, 3), 'u1')); print(cv2.imread('x.png').shape)"),
        (
            "safetensors.torch",
            "safetensors.torch.save_file({'a': torch.ones(2)}, 'x.st'); print(safetensors.torch.load_file('x.st'))",
        ),
        ("pyarrow.parquet", "t = pyarrow.table({'a': [1]}); pyarrow.parquet.write_table(t, 'x.parquet')"),
    ],
)
def test_libraries_that_write_from_c(ran, tmp_path, library, line):
    pytest.importorskip(library)
    changed = ran(f"import torch, {library}\n{line}\n", {}, scratch=tmp_path / "run" / "scratch")
    assert changed.code == 0, changed.err
    assert not list(tmp_path.glob("x.*"))
    assert list((tmp_path / "run" / "scratch").rglob("x.*"))
