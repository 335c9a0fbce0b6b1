"""What a program writes in a trial goes elsewhere; what was there stays; the program notices nothing."""

from __future__ import annotations

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
