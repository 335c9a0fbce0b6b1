"""What is suggested at the user's own lines: a diff where that is plainly safe, a sentence elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.explain.model import Evidence, Finding, Remedy
from paceline.tune.patches.model import SourceFile
from paceline.tune.patches.suggestions import suggestions

LOOP = """import torch
total, losses = 0.0, []
for epoch in range(3):
    for step, (x, y) in enumerate(loader):
        loss = train(x, y)
        {line}
    torch.save(model, "last.pt")
"""


IDS = ("sync.less_often", "host.less_often", "checkpoint.async", "checkpoint.less_often")


def finding(code: str, text: str) -> Finding:
    remedies = [Remedy(id=name, safety="exact", change=f"do {name}") for name in IDS]
    return Finding(
        code=code,
        name=code.lower(),
        severity="warning",
        confidence="high",
        time_share=0.3,
        gain=None,
        ranks=[0],
        evidence=[Evidence(text="takes 30%", value=0.3, unit=""), Evidence(text=text, value=1.0, unit="samples")],
        remedies=remedies,
        summary="",
    )


def script(line: str, name: str = "train.py") -> SourceFile:
    return SourceFile(path=Path(name), text=LOOP.format(line=line), is_script=True)


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("print(step, loss.item())", ["        if step % 50 == 0:", "            print(step, loss.item())"]),
        ("wandb.log(values)", ["        if step % 50 == 0:", "            wandb.log(values)"]),
        ("total += loss.item() * len(x)", ["        total += loss.detach() * len(x)"]),
        ("losses.append(loss.item())", ["        losses.append(loss.detach())"]),
    ],
)  # fmt: skip
def test_a_line_of_every_step(line, wanted):
    one = finding("COMP003", "12 of them are in main (train.py:6): `the line`")
    (found,) = suggestions([one], [script(line)])
    assert (found.finding, found.where, found.text) == ("COMP003", "train.py:6", "do sync.less_often")
    assert [x[1:] for x in found.diff.splitlines() if x.startswith("+") and not x.startswith("+++")] == wanted


@pytest.mark.parametrize("line", ["value = loss.item()", "if loss.item() > 3: break", "total += loss", "print(\n1)"])
def test_what_is_not_plainly_safe_is_a_sentence(line):
    (found,) = suggestions([finding("RUN006", "35% are in main (train.py:6) (9 samples)")], [script(line)])
    assert (found.remedy, found.text, found.diff) == ("host.less_often", "do host.less_often", None)


def test_without_a_counter_there_is_no_diff():
    source = SourceFile(path=Path("train.py"), text="for x in loader:\n    print(x)\n")
    (found,) = suggestions([finding("RUN006", "in main (train.py:2)")], [source])
    assert found.diff is None


def test_saves_in_loops_are_found_where_no_line_is_named():
    source = script("torch.save(model, 'step.pt')")
    found = suggestions([finding("RUN001", "40 of 40 steps saved")], [source])
    assert [(one.where, one.text) for one in found] == [
        ("train.py:6", "do checkpoint.less_often"),
        ("train.py:7", "do checkpoint.less_often"),
    ]
    assert "if step % 50 == 0:" in found[0].diff
    assert found[1].diff is None  # once an epoch


def test_a_line_in_one_of_two_files_of_a_name_is_not_guessed():
    sources = [script("print(1)", "a/train.py"), script("print(1)", "b/train.py")]
    assert suggestions([finding("COMP003", "in main (train.py:6)"), finding("DATA001", "(train.py:6)")], sources) == []


def test_shards_are_shown_where_a_loader_is_made():
    text = "import torch.utils.data as tud\nloader = tud.DataLoader(photos)\nother = make(photos)\n"
    plain = finding("DATA007", "9 small reads a sample")
    shards = Remedy(id="loader.shards", safety="exact", change="paceline data convert SRC DEST")
    (found,) = suggestions(
        [replace(plain, remedies=[*plain.remedies, shards])], [SourceFile(path=Path("train.py"), text=text)]
    )
    assert (found.where, found.text, found.diff) == ("train.py:2", "paceline data convert SRC DEST", None)
