"""The patch to the source: does the patched program do what the recipe does, and is nothing else touched?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import UsageError
from paceline.tune.patches.model import Patch, SourceFile, diff_of, write
from paceline.tune.patches.patch import patched
from paceline.tune.patches.source.sources import sources_of

LOADS = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    made = 0
    def __len__(self):
        return 24
    def __getitem__(self, index):
        self.made += 1
        return torch.tensor([float(index)]), index % 3

if __name__ == "__main__":
    torch.manual_seed(7)
    torch.set_num_threads(1)
    numbers = Numbers()
    loader = DataLoader(numbers, batch_size=4, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    for epoch in range(3):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            print(epoch, x.flatten().tolist(), loss.item().hex())
    print(loader.num_workers, loader.persistent_workers, loader.prefetch_factor, loader.pin_memory)
    print(numbers.made, file=sys.stderr)
"""

COMPUTES = """
import torch
from torch import nn, optim

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
    def forward(self, x):
        y = self.conv(x)
        print(y.dtype, x.is_contiguous(memory_format=torch.channels_last), torch.get_num_threads())
        return {"logits": self.head(y.mean((2, 3)))}

def main():
    torch.set_num_threads(2)
    torch.manual_seed(3)
    model = Net()
    if torch.cuda.is_available():
        model = model.cuda()
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(4):
        logits = model(torch.rand(2, 3, 8, 8))["logits"]
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(logits.dtype, loss.item().hex())
    print(optimizer.defaults["fused"], optimizer.defaults["foreach"])

if __name__ == "__main__":
    main()
"""

WRAPS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
model = DDP(model)
for _ in range(3):
    loss = model(torch.rand(2, 4)).square().sum()
    loss.backward()
    print(loss.item().hex())
print(model.static_graph, model.gradient_as_bucket_view, model.bucket_bytes_cap)
dist.destroy_process_group()
"""


def patch_of(folder: Path, source: str, recipe: Any, **others: str) -> Patch:
    """The patch of a program that lies in a folder, its other modules beside it."""
    (folder / "train.py").write_text(textwrap.dedent(source))
    for name, text in others.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return patched(sources_of(["python", "train.py"], folder, {}), recipe)


def of_text(text: str, recipe: Any) -> Patch:
    """The patch of a script that is in no file."""
    return patched([SourceFile(path=Path("train.py"), text=textwrap.dedent(text), is_script=True)], recipe)


def added(patch: Patch) -> list[str]:
    """The lines that a patch adds, without their margins."""
    lines = diff_of(patch).splitlines()
    return [line[1:].strip() for line in lines if line.startswith("+") and not line.startswith("+++")]


@pytest.mark.parametrize(
    "source, recipe",
    [
        (LOADS, {"loader": {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}}),
        (
            COMPUTES,
            {
                "precision": {"autocast": "bf16"},
                "compute": {"channels_last": True, "num_threads": 1},
                "optimizer": {"fused": True},
            },
        ),
        (WRAPS, {"ddp": {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 7}}),
    ],
    ids=["loader", "precision-compute-optimizer", "ddp"],
)
def test_the_patched_program_does_what_the_recipe_does(ran, tmp_path, source, recipe):
    """To the last digit of every loss, and with every setting in force in both."""
    under_recipe = ran(source, recipe)
    patch = patch_of(tmp_path, source, recipe)
    changed = ran(patch.after[0].text)
    assert (under_recipe.code, changed.code) == (0, 0), changed.err
    assert patch.stays == []
    assert set(under_recipe.held) >= {f"{table}.{key}" for table, settings in recipe.items() for key in settings}
    assert changed.out == under_recipe.out


def test_the_loader_of_a_patch_gives_what_the_program_gave(ran, tmp_path):
    """Kept workers shuffle as if they were new; samples that are kept are made once, and are the same."""
    bare = ran(LOADS)
    kept = patch_of(tmp_path, LOADS, {"loader": {"num_workers": 2, "persistent_workers": True}})
    cached = patch_of(tmp_path, LOADS, {"loader": {"num_workers": 0, "cache": True}})
    assert ran(kept.after[0].text).out.splitlines() == [*losses(bare), "2 True 2 False"]
    from_memory = ran(cached.after[0].text)
    assert from_memory.out == bare.out
    assert (bare.err, from_memory.err) == ("72\n", "24\n")


def test_a_loader_that_kept_its_workers_shuffles_without_them_as_it_did(ran, tmp_path):
    keeps = LOADS.replace("shuffle=True)", "shuffle=True, num_workers=2, persistent_workers=True)")
    bare = ran(keeps)
    patch = patch_of(tmp_path, keeps, {"loader": {"num_workers": 0, "cache": True}})
    changed = ran(patch.after[0].text)
    assert losses(changed) == losses(bare)
    assert changed.out.endswith("0 False None False\n")


def losses(ran: Any) -> list[str]:
    """What a program printed of its training; the last line tells of its loader."""
    return ran.out.splitlines()[:-1]


MODELS = """
import copy
import io
import torch
model = torch.nn.Linear(2, 2)
model = torch.nn.Sequential(model)
optimizer = None and torch.optim.SGD(model.parameters())
print(model._compiled_call_impl is not None, model[0]._compiled_call_impl is not None)
model._compiled_call_impl = None
other = copy.deepcopy(model)
with torch.no_grad():
    other[0].weight.zero_()
    other[0].bias.zero_()
print(other(torch.ones(1, 2)).tolist(), model(torch.ones(1, 2)).abs().sum().item() > 0)
file = io.BytesIO()
torch.save(model, file)
file.seek(0)
print(sorted(torch.load(file, weights_only=False).state_dict()))
"""


def test_a_model_is_changed_where_it_is_whole_and_can_be_copied_and_saved(ran, tmp_path):
    """A copy, as for an average of weights, computes with its own weights."""
    compute = {"channels_last": True, "compile": "reduce-overhead"}
    patch = patch_of(tmp_path, MODELS, {"precision": {"autocast": "bf16"}, "compute": compute})
    assert added(patch)[-3:] == [
        "in_bf16(model)",
        "channels_last(model)",
        'compile_whole(model, mode="reduce-overhead")',
    ]
    changed = ran(patch.after[0].text)
    assert changed.out.splitlines() == ["True False", "[[0.0, 0.0]] True", "['0.bias', '0.weight']"], changed.err


@pytest.mark.parametrize(
    "line, call",
    [
        ("from torch.utils.data import DataLoader as DL", "DL"),
        ("import torch", "torch.utils.data.DataLoader"),
        ("import torch as T", "T.utils.data.DataLoader"),
        ("from torch.utils import data", "data.DataLoader"),
        ("import torch.utils.data as tud", "tud.DataLoader"),
        ("from torch.utils.data.dataloader import DataLoader", "DataLoader"),
        ("try:\n    from torch.utils.data import DataLoader\nexcept ImportError:\n    raise", "DataLoader"),
    ],
)
def test_a_loader_is_known_by_any_name(line, call):
    patch = of_text(f"{line}\nloader = {call}(numbers, 4)\n", {"loader": {"num_workers": 3}})
    assert patch.after[0].text == f"{line}\nloader = {call}(numbers, 4, num_workers=3)\n"


@pytest.mark.parametrize("call", ["Loader(numbers)", "data.Other(numbers)", "loader_of(numbers)"])
def test_what_is_not_known_to_be_a_loader_is_left_alone(call):
    patch = of_text(f"from mine import Loader\nimport torch\nloader = {call}\n", {"loader": {"num_workers": 3}})
    assert patch.changed == []
    assert [one.setting for one in patch.stays] == ["loader.num_workers"]


@pytest.mark.parametrize(
    "line, call",
    [
        ("from torch import optim", "optim.AdamW"),
        ("from torch.optim import AdamW", "AdamW"),
        ("import torch", "torch.optim.AdamW"),
        ("from torch.optim.adamw import AdamW as Adam", "Adam"),
    ],
)
def test_an_optimizer_is_known_by_any_name(line, call):
    patch = of_text(f"{line}\noptimizer = {call}(parameters, lr=1e-3)\n", {"optimizer": {"fused": True}})
    assert f"{call}(parameters, lr=1e-3, fused=True)" in patch.after[0].text


@pytest.mark.parametrize(
    "given, wanted, setting",
    [
        ("numbers, 4, True, None, None, 1", "numbers, 4, True, None, None, 3", {"num_workers": 3}),
        ("numbers, num_workers=0", "numbers, num_workers=0", {"prefetch_factor": 4}),
        ("numbers", "numbers", {"num_workers": 0}),
        ("numbers, num_workers=8, prefetch_factor=4, timeout=9", "numbers, num_workers=0", {"num_workers": 0}),
        ("numbers, num_workers=8, timeout=4, shuffle=a", "numbers, num_workers=0, shuffle=a", {"num_workers": 0}),
        ("numbers, num_workers=n", "numbers, num_workers=n, prefetch_factor=4 if n else None", {"prefetch_factor": 4}),
        ("numbers, pin_memory = False", "numbers, pin_memory = True", {"pin_memory": True}),
        ("dataset=numbers", "dataset=CachedSamples(numbers)", {"num_workers": 0, "cache": True}),
        ("numbers, persistent_workers=True, num_workers=1", "numbers, persistent_workers=True, num_workers=3",
         {"num_workers": 3, "persistent_workers": True}),
    ],
)  # fmt: skip
def test_arguments_are_added_changed_and_taken_away(given, wanted, setting):
    text = "from torch.utils.data import DataLoader\nloader = DataLoader({})\n"
    assert of_text(text.format(given), {"loader": setting}).after[0].text.endswith(f"loader = DataLoader({wanted})\n")


def test_a_loader_that_is_made_anew_in_each_epoch_finds_the_kept_samples(tmp_path):
    text = """
from torch.utils.data import DataLoader, Dataset

class Counted(Dataset):
    made = 0
    def __len__(self):
        return 6
    def __getitem__(self, index):
        Counted.made += 1
        return index

numbers, rows = Counted(), [3, 4, 5]
for epoch in range(3):
    first = [batch.tolist() for batch in DataLoader(numbers, batch_size=2)]
    second = [batch.tolist() for batch in DataLoader(rows, batch_size=3)]
print(Counted.made, first, second)
"""
    patched = tmp_path / "patched.py"
    patched.write_text(of_text(text, {"loader": {"num_workers": 0, "cache": True}}).after[0].text)
    done = subprocess.run([sys.executable, patched], capture_output=True, text=True)
    assert done.stdout == "6 [[0, 1], [2, 3], [4, 5]] [[3, 4, 5]]\n", done.stderr


def test_the_manner_of_writing_and_the_comments_stay():
    text = """
    from torch.utils.data import DataLoader

    a = DataLoader(
        numbers,  # all of them
        batch_size=4,  # small
    )
    b = DataLoader(
        numbers, batch_size=4  # no comma
    )
    c = DataLoader(numbers,
                   batch_size=4)
    d = DataLoader(
        numbers,
        num_workers=2,  # two
        prefetch_factor=8,  # many
    )
    """
    wanted = """
    from torch.utils.data import DataLoader

    a = DataLoader(
        numbers,  # all of them
        batch_size=4,  # small
        num_workers=3,
    )
    b = DataLoader(
        numbers, batch_size=4,  # no comma
    num_workers=3
    )
    c = DataLoader(numbers,
                   batch_size=4,
                   num_workers=3)
    d = DataLoader(
        numbers,
        num_workers=3,  # two
        prefetch_factor=8,  # many
    )
    """
    assert of_text(text, {"loader": {"num_workers": 3}}).after[0].text == textwrap.dedent(wanted)
    without = of_text(text, {"loader": {"num_workers": 0}}).after[0].text
    assert "    num_workers=0,  # two\n)\n" in without


EVERYTHING: Any = {
    "loader": {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True, "pin_memory": True},
    "precision": {"autocast": "bf16", "tf32": True},
    "compute": {"compile": "default", "channels_last": True, "num_threads": 2, "cudnn_benchmark": True},
    "optimizer": {"fused": True},
    "ddp": {"static_graph": True},
}


@pytest.mark.parametrize("source", [LOADS, COMPUTES, WRAPS], ids=["loads", "computes", "wraps"])
@pytest.mark.parametrize("recipe", [EVERYTHING, {"loader": {"num_workers": 0, "cache": True}}], ids=["all", "cache"])
def test_a_patched_source_is_not_patched_again(source, recipe):
    once = of_text(source, recipe)
    assert once.changed or "DataLoader" not in source
    twice = patched(once.after, recipe)
    assert twice.changed == []
    compile(once.after[0].text, "train.py", "exec")


def test_what_is_put_behind_the_imports():
    text = (
        '"""Train."""\n\nimport torch\n\nSEED = 1\n\n'
        "model = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters())\n"
    )
    patch = of_text(text, {"precision": {"tf32": True}, "compute": {"num_threads": 2, "channels_last": True}})
    lines = patch.after[0].text.splitlines()
    assert lines[:4] == ['"""Train."""', "", "import torch", ""]
    order = [line for line in lines if line.startswith(("torch.", "def ", "SEED", "channels_last(", "optimizer"))]
    assert order == [
        "torch.set_num_threads(2)",
        'torch.set_float32_matmul_precision("high")',
        "def channels_last(model):",
        "def pictures_last(module, args, kwargs):",
        "SEED = 1",
        "channels_last(model)",
        "optimizer = torch.optim.SGD(model.parameters())",
    ]


@pytest.mark.parametrize(
    "body, wanted",
    [
        ("model = Net()\nmodel = DDP(model)\noptimizer = AdamW(model.parameters())\nfor x in data:\n    model(x)", 2),
        ("model = Net()\noptimizer = AdamW(model.parameters())\nmodel = DDP(model)\nfor x in data:\n    model(x)", 3),
        ("model = Net()\noptimizer = AdamW(model.parameters())\nfor x in data:\n    model(x)\nmodel = load()", 1),
        ("model = Net()\noptimizer = AdamW(model.parameters())\ntrain(model, optimizer)\nmodel = load()", 1),
        ("model: Net = Net()\nparts = [{'params': model.head.parameters()}]\noptimizer = AdamW(parts)", 1),
        ("model = Net()\nif gpu:\n    model = model.cuda()\noptimizer = AdamW(model.parameters())", 3),
        ("model, rest = build()\noptimizer = make_optimizer(args, model)\nfor x in data:\n    model(x)", 1),
        ("def optimizer_of(model):\n    return AdamW(model.parameters())", 1),
    ],
)
def test_where_a_model_is_whole(body, wanted):
    """The number of the body's line behind which the call goes."""
    text = f"import torch\nfrom torch.optim import AdamW\n{body}\n"
    lines = of_text(text, {"compute": {"compile": "default"}}).after[0].text.splitlines()[2:]
    assert [number for number, line in enumerate(lines) if line.strip() == "model.compile()"] == [wanted]


def test_a_model_of_an_object_is_found_in_another_method():
    text = """
    import torch
    class Trainer:
        def __init__(self):
            self.net = Net()
            self.name = "it"
        def configure(self):
            self.optimizer = torch.optim.SGD(self.net.parameters())
    """
    lines = of_text(text, {"compute": {"compile": "default"}}).after[0].text.splitlines()
    assert lines[lines.index("        self.net = Net()") + 1] == "        self.net.compile()"


@pytest.mark.parametrize(
    "line, recipe, words",
    [
        ("DataLoader(numbers, **given)", {"loader": {"num_workers": 2}}, "passes its arguments with * or **"),
        ("DataLoader(d, num_workers=args.workers)", {"loader": {"num_workers": 2}}, "does not say where it comes from"),
        ("DataLoader(numbers)", {"loader": {"threads": 2, "num_workers": 0}}, "no argument for loader threads"),
        ("DataLoader(numbers)", {"loader": {"batch_size": 64}}, "the setting changes the training algorithm"),
        ("DataLoader(numbers)", {"loader": {"persistent_workers": True}}, "no DataLoader to which the setting applies"),
        ("DataLoader(numbers, num_workers=2)", {"loader": {"cache": True}}, "train.py:8 has workers"),
        ("DataLoader(numbers, num_workers=len(a))", {"loader": {"prefetch_factor": 4}}, "must also set num_workers"),
        ("DataLoader(Stream())", {"loader": {"num_workers": 2}}, "train.py:8 reads an IterableDataset"),
        ("DataLoader(Stream(), num_workers=2)", {"loader": {"num_workers": 0}}, "train.py:8 reads an IterableDataset"),
        ("AdamW(p, foreach=True)", {"optimizer": {"fused": True}}, "train.py:8 has foreach=True"),
        ("AdamW(p, **given)", {"optimizer": {"fused": True}}, "train.py:8 passes its arguments with * or **"),
        ("DataLoader(d, num_workers=2, persistent_workers=w > 0)", {"loader": {"num_workers": 0}}, "would change"),
        ("DataLoader(d, num_workers=1, persistent_workers=k)", {"loader": {"persistent_workers": True}}, "=k, and"),
        ("Mine(d, num_workers=2)", {"loader": {"persistent_workers": True}}, "persistent_workers=False, and with"),
        ("Built(d)", {"loader": {"num_workers": 2}}, "train.py:8 creates a Built, which defines its own __init__"),
        ("torch.optim.LBFGS(p)", {"optimizer": {"fused": True}}, "no optimizer of torch.optim"),
        ("AdamW(p)", {"compute": {"compile": "default"}}, "creates no optimizer from the parameters of a model"),
        ("m = torch.compile(net); o = AdamW(m.parameters())", {"compute": {"compile": "default"}}, "train.py:8"),
        ("autocast('cpu'); o = AdamW(net.parameters())", {"precision": {"autocast": "bf16"}}, "chooses a precision"),
        ("torch.backends.cuda.matmul.allow_tf32 = False", {"precision": {"tf32": True}}, "train.py:8 has torch.back"),
        ("AdamW(p)", {"precision": {"autocast": "fp16"}}, "GradScaler"),
        ("AdamW(p)", {"memory": {"micro_batches": 2}}, "Paceline cannot write this setting into the source"),
        ("AdamW(p)", {"ddp": {"static_graph": True}}, "does not call DistributedDataParallel"),
        ("DDP(m, bucket_cap_mb=50)", {"ddp": {"bucket_cap_mb": 7}}, "train.py:8 already passes bucket_cap_mb=50"),
    ],
)  # fmt: skip
def test_what_has_no_patch_is_told_with_the_place(line, recipe, words):
    text = (
        "import torch; from torch.nn.parallel import DistributedDataParallel as DDP; from torch.optim import AdamW\n"
        "from torch.amp import autocast; from torch.utils.data import DataLoader, IterableDataset\n"
        "class Stream(IterableDataset): pass\n"
        "class Mine(DataLoader): pass\n"
        "class Built(DataLoader):\n    def __init__(self, d):\n        DataLoader.__init__(self, d, shuffle=True)\n"
        f"{line}\n"
    )
    patch = of_text(text, recipe)
    assert patch.changed == []
    assert any(words in one.why for one in patch.stays), patch.stays


@pytest.mark.parametrize(
    "call, recipe, wanted",
    [
        (
            "TrainingArguments('out')",
            {"loader": {"num_workers": 3}},
            "TrainingArguments('out', dataloader_num_workers=3)",
        ),
        (
            "TrainingArguments('out', dataloader_num_workers=1)",
            {"loader": {"num_workers": 2, "prefetch_factor": 4}},
            "TrainingArguments('out', dataloader_num_workers=2, dataloader_prefetch_factor=4)",
        ),
        (
            "TrainingArguments('out', dataloader_pin_memory=False)",
            {"loader": {"pin_memory": True}},
            "TrainingArguments('out', dataloader_pin_memory=True)",
        ),
    ],
)
def test_the_loaders_of_transformers_trainer_are_changed_where_its_arguments_are(call, recipe, wanted):
    head = "from transformers import HfArgumentParser, TrainingArguments\nargs = "
    patch = of_text(f"{head}{call}\n", recipe)
    assert (patch.after[0].text, list(patch.stays)) == (f"{head}{wanted}\n", [])
    assert of_text(patch.after[0].text, recipe).changed == []


@pytest.mark.parametrize(
    "call, recipe, words",
    [
        (
            "TrainingArguments('out', **given)",
            {"loader": {"num_workers": 3}},
            "train.py:2 passes its arguments with * or **",
        ),
        ("TrainingArguments('out')", {"loader": {"persistent_workers": True}}, "draw other random numbers"),
        ("TrainingArguments('out')", {"loader": {"prefetch_factor": 4}}, "recipe must also set num_workers"),
        ("TrainingArguments('out')", {"loader": {"num_workers": 0, "cache": True}}, "wrap the dataset"),
        ("HfArgumentParser((Mine, TrainingArguments))", {"loader": {"num_workers": 3}}, "--dataloader_num_workers 3"),
    ],
)
def test_what_transformers_trainer_cannot_be_told_in_the_source_is_named(call, recipe, words):
    patch = of_text(f"from transformers import HfArgumentParser, TrainingArguments\nargs = {call}\n", recipe)
    assert any(words in one.why for one in patch.stays), patch.stays


def test_lines_are_those_of_the_program_as_it_was():
    """Edits of one table move the lines of the next."""
    text = (
        "import torch\nmodel = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), foreach=True)\n"
    )
    patch = of_text(text, {"precision": {"autocast": "bf16"}, "optimizer": {"fused": True}})
    assert [one.why for one in patch.stays] == ["train.py:3 has foreach=True"]


def test_modules_beside_the_script_are_patched_and_installed_ones_are_not(tmp_path):
    loader = "from torch.utils.data import DataLoader\ndef make(numbers):\n    return DataLoader(numbers)\n"
    for folder in ("mine/inner", "env/lib"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "env" / "lib" / "installed.py").write_text(loader)
    (tmp_path / "mine" / "__init__.py").write_text("from .inner import loaders\n")
    (tmp_path / "mine" / "inner" / "loaders.py").write_text(loader)
    (tmp_path / "unused.py").write_text(loader)
    patch = patch_of(
        tmp_path,
        "import json, mine, near\nfrom env.lib import installed\n",
        {"loader": {"num_workers": 2}},
        near=loader,
    )
    assert sorted(str(before.path) for before, _ in patch.changed) == ["mine/inner/loaders.py", "near.py"]


@pytest.mark.parametrize(
    "command, found",
    [
        ("python train.py --config other.py", "train.py"),
        ("python -u train.py", "train.py"),
        ("torchrun --nproc-per-node 2 --standalone train.py", "train.py"),
        ("torchrun --nproc-per-node 2 -m pack.main", "pack/main.py"),
        ("python -m pack", "pack/__main__.py"),
        ("python pack", "pack/__main__.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("accelerate launch --mixed_precision no train.py", "train.py"),
        ("srun --ntasks 2 python train.py", "train.py"),
    ],
)
def test_the_script_of_any_command(tmp_path, command, found):
    (tmp_path / "pack").mkdir()
    for name in ("train.py", "other.py", "pack/__init__.py", "pack/main.py", "pack/__main__.py"):
        (tmp_path / name).write_text("pass\n")
    script = sources_of(command.split(), tmp_path, {})[0]
    assert (str(script.path), script.is_script) == (found, True)


@pytest.mark.parametrize("command", ["bash run.sh", "python -c pass", "python -m torch.distributed.run"])
def test_a_command_without_a_script_is_told(tmp_path, command):
    (tmp_path / "run.sh").write_text("python train.py\n")
    with pytest.raises(UsageError, match="found no Python script of your program"):
        sources_of(command.split(), tmp_path, {})


@pytest.mark.parametrize(
    "content",
    [
        b"import torch\r\nloader = torch.utils.data.DataLoader(n)\r\n",
        b"\xef\xbb\xbfimport torch\nloader = torch.utils.data.DataLoader(n)  # \xc3\xa4\n",
        b"# -*- coding: latin-1 -*-\nimport torch  # \xe4\nloader = torch.utils.data.DataLoader(n)\n",
        b"import torch\nloader = torch.utils.data.DataLoader(n)",
    ],
    ids=["crlf", "bom", "latin", "no-end"],
)
def test_the_bytes_of_a_file_stay_but_for_the_patch(tmp_path, content):
    (tmp_path / "train.py").write_bytes(content)
    patch = patched(sources_of(["python", "train.py"], tmp_path, {}), {"loader": {"num_workers": 2}})
    if shutil.which("git"):
        (tmp_path / "fix.patch").write_bytes(diff_of(patch).encode(patch.before[0].encoding.removesuffix("-sig")))
        subprocess.run(["git", "apply", "--check", "fix.patch"], cwd=tmp_path, check=True)
    write(patch, tmp_path)
    assert (tmp_path / "train.py").read_bytes() == content.replace(b"(n)", b"(n, num_workers=2)")


def test_a_name_with_a_space_can_be_applied(tmp_path):
    patch = patched([SourceFile(path=Path("my train.py"), text=SCRIPT, is_script=True)], {"loader": {"num_workers": 2}})
    assert diff_of(patch).startswith("--- a/my train.py\t\n+++ b/my train.py\t\n")


def tune(folder: Path, *options: str, code: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run `paceline tune` with options, in a fresh interpreter."""
    start = f"{code}; from paceline.cli import main; main({['tune', *options]!r})"
    return subprocess.run([sys.executable, "-c", start], cwd=folder, capture_output=True, text=True, timeout=120)


SCRIPT = "import torch\nloader = torch.utils.data.DataLoader(n)\n"
WANTED = SCRIPT.replace("(n)", "(n, num_workers=2)")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "recipe.toml").write_text("[loader]\nnum_workers = 2\n[memory]\nmicro_batches = 2\n")
    return tmp_path


def test_from_a_recipe_to_a_diff_without_a_trial(place):
    done = tune(place, "--from", "recipe.toml", "train.py", "--epochs", "3")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -1,2 +1,2 @@",
        " import torch",
        "-loader = torch.utils.data.DataLoader(n)",
        "+loader = torch.utils.data.DataLoader(n, num_workers=2)",
    ]
    compares, compared, *rest = done.stderr.splitlines()
    assert compares == "paceline: comparing the patched program with the program under the recipe"
    assert compared.startswith("paceline: patch: the patched program was not")  # it cannot run: n is not defined
    assert rest == [
        "paceline: not in the patch: memory.micro_batches: Paceline cannot write this setting into the source",
        "paceline: next: paceline tune --write --from recipe.toml train.py --epochs 3",
    ]
    assert sorted(path.name for path in place.iterdir()) == ["recipe.toml", "train.py"]


def test_the_patch_is_written_and_no_copy_is_lost(place):
    (place / "train.py").chmod(0o750)
    (place / "train.py.orig").write_text("kept from before")
    done = tune(place, "--write", "--from", "recipe.toml", "--no-check", "train.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert "wrote train.py; the old version of the file is train.py.orig2" in done.stderr
    assert (place / "train.py").read_text() == WANTED
    assert (place / "train.py.orig").read_text() == "kept from before"
    assert (place / "train.py.orig2").read_text() == SCRIPT
    assert (place / "train.py").stat().st_mode & 0o777 == 0o750
    again = tune(place, "--write", "--from", "recipe.toml", "--no-check", "train.py")
    assert "no patch" in again.stderr
    # No next step: the run would lead back to this command if the rest of the recipe has no effect.
    assert again.stderr.splitlines()[-1] == (
        "paceline: the source stays as it is; the settings take effect only with the recipe: "
        "paceline run --recipe recipe.toml train.py"
    )
    assert sorted(p.name for p in place.iterdir()) == ["recipe.toml", "train.py", "train.py.orig", "train.py.orig2"]


def test_all_files_are_written_or_none(place):
    (place / "near.py").write_text(SCRIPT)
    (place / "train.py").write_text(f"import near\n{SCRIPT}")
    patch = patched(sources_of(["python", "train.py"], place, {}), {"loader": {"num_workers": 2}})
    (place / "near.py").write_text(f"{SCRIPT}# edited meanwhile\n")
    before = {path.name: path.read_text() for path in place.iterdir()}
    with pytest.raises(Exception, match="near.py was changed while the patch was made"):
        write(patch, place)
    assert {path.name: path.read_text() for path in place.iterdir()} == before


@pytest.mark.parametrize(
    "options, code, words",
    [
        (("--diff", "train.py"), "import sys; sys.modules['libcst'] = None", "pip install paceline[patch]"),
        (("--from", "recipe.toml", "train.py"), "import sys; sys.modules['libcst'] = None", "pip install paceline[pat"),
        (("--diff", "--", "bash", "run.sh"), "pass", "found no Python script of your program in `bash run.sh`"),
        (("--from", "none.toml", "train.py"), "pass", "no recipe none.toml"),
        (("--from", "recipe.toml", "--json", "out.json", "train.py"), "pass", "with --from there are no trials"),
    ],
    ids=["libcst", "libcst-from", "no-script", "no-recipe", "json"],
)
def test_what_cannot_be_patched_is_told_before_any_trial(place, options, code, words):
    done = tune(place, *options, code=code)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not os.path.exists(place / ".paceline")


OPTIONS = """
import argparse
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("-j", "--data-workers", type=int, default=0, help="worker processes")
parser.add_argument("--debug", action="store_true")
args = parser.parse_args()
train = DataLoader(range(9), 3, num_workers={workers})
"""
TWO = {"loader": {"num_workers": 2}}


def patched_options(workers: str, *command: str, more: str = ""):
    source = SourceFile(path=Path("train.py"), text=OPTIONS.format(workers=workers) + more, is_script=True)
    return patched([source], TWO, ["python", "train.py", *command])


@pytest.mark.parametrize("more", ["", "test = DataLoader(range(9), num_workers=args.data_workers)\n"])
def test_workers_of_an_option_are_changed_where_its_default_is(more):
    patch = patched_options("args.data_workers", more=more)
    before, after = patch.before[0].text, patch.after[0].text
    assert after == before.replace("default=0", "default=2")
    assert not patch.stays


def test_a_variable_that_is_made_of_the_option_for_loaders_follows_it():
    more = "keep = args.data_workers > 0\ntest = DataLoader(range(9), num_workers=1, persistent_workers=keep)\n"
    patch = patched_options("args.data_workers", more=more)
    assert 'default=2, help="worker processes"' in patch.after[0].text
    assert "DataLoader(range(9), 3, num_workers=args.data_workers)" in patch.after[0].text


@pytest.mark.parametrize(
    "workers, command, more, flags",
    [
        ("args.data_workers", ("--data-workers", "1"), "", "--data-workers"),  # the command sets it
        ("args.data_workers", ("--data-workers=1",), "", "--data-workers"),
        ("args.data_workers", (), "print(args.data_workers * 2)\n", "--data-workers"),  # it is used for something else
        ("args.data_workers if not args.debug else 0", (), "", "--data-workers and --debug"),
    ],
)
def test_flags_stay_in_use_where_no_default_can_be_changed(workers, command, more, flags):
    patch = patched_options(workers, *command, more=more)
    assert not patch.changed
    (stays,) = patch.stays
    assert stays.why == f"train.py:8 has num_workers={workers}: set {flags} for 2 workers"


def test_kept_workers_follow_the_option(ran):
    source = SourceFile(path=Path("train.py"), text=OPTIONS.format(workers="args.data_workers"), is_script=True)
    text = patched([source], {"loader": {"num_workers": 2, "persistent_workers": True}}, []).after[0].text
    assert "num_workers=args.data_workers, persistent_workers=args.data_workers > 0)" in text
    done = ran(text + "print([b.tolist() for b in train], train.num_workers, train.persistent_workers)")
    assert done.out.endswith("[[0, 1, 2], [3, 4, 5], [6, 7, 8]] 2 True\n")


@pytest.mark.parametrize(
    "line, is_changed",
    [
        ("val_loader = DataLoader(data)", False),
        ("loader = DataLoader(test_set, batch_size=8)", False),
        ("loaders['eval'] = DataLoader(data)", False),
        ("loader = DataLoader(validated)", True),
        ("test_loader = DataLoader(data, shuffle=True)", True),
        ("loader = DataLoader(latest)", True),
    ],
)
def test_loaders_of_evaluation_are_left_alone(line, is_changed):
    text = f"from torch.utils.data import DataLoader\n{line}\n"
    source = SourceFile(path=Path("train.py"), text=text, is_script=True)
    found = patched([source], {"loader": {"num_workers": 2}})
    assert ("num_workers=2" in found.after[0].text) is is_changed
