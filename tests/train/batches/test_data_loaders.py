"""Torch's loaders on several ranks: functions of whole batches, and samplers and data sets that a program changes."""

from __future__ import annotations

import importlib.util
import json

import pytest
from tests.train.launching import on_ranks

PROGRAM = '''
import json, random, sys
from pathlib import Path
import numpy
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, WeightedRandomSampler, default_collate
from paceline.core.errors import UsageError
from paceline.train import Engine

ROWS = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
SENTENCES = [torch.arange(1.0, 2 + n * 5 % 11) / 10 for n in range(32)]
NUMBERS = torch.arange(32)


class Data(Dataset):
    """Rows, or what a function makes of a row."""

    def __init__(self, change=None):
        self.change = change
        self.labels = ROWS.sum(1, keepdim=True)

    def __len__(self):
        return 32

    def __getitem__(self, number):
        row = ROWS[number]
        return row if self.change is None else self.change(row), self.labels[number]


class Drawing(Data):
    """Rows with noise that each sample draws."""


class Standardised(Data):
    def __getitems__(self, numbers):
        rows = ROWS[numbers]
        return list(zip((rows - rows.mean(0)) / rows.std(0), self.labels[numbers]))


class Texts(Data):
    def __getitem__(self, number):
        return SENTENCES[number], self.labels[number]


def noisy(row):
    return row + torch.rand(()) + numpy.random.rand() + random.random()


def padded(samples):
    rows = pad_sequence([row for row, _ in samples], batch_first=True)
    return rows.cos().mean(1, keepdim=True).expand(-1, 4), torch.stack([label for _, label in samples])


def mixed(samples):
    rows, labels = default_collate(samples)
    order, share = torch.randperm(len(rows)), random.random() * numpy.random.rand()
    return rows * share + rows[order] * (1 - share), labels


def as_lists(samples):
    return [row for row, _ in samples], [label for _, label in samples]


def as_dict(samples):
    rows, labels = default_collate(samples)
    return {"rows": rows - rows.mean(0), "labels": labels, "scale": 2.0}


def twice(samples):
    rows, labels = default_collate(samples)
    return torch.cat([rows, rows + 1]), torch.cat([labels, labels])


def seeded(number):
    numpy.random.seed(torch.initial_seed() % 2**32)


WHOLE = {
    "pad": lambda: DataLoader(Texts(), 8, shuffle=True, collate_fn=padded),
    "mix": lambda: DataLoader(Data(), 8, shuffle=True, collate_fn=mixed),
    "mix noisy samples": lambda: DataLoader(Data(noisy), 8, shuffle=True, collate_fn=mixed),
    "mix in workers": lambda: DataLoader(
        Data(noisy), 8, shuffle=True, collate_fn=mixed, num_workers=1, worker_init_fn=seeded
    ),
    "generator": lambda: DataLoader(
        Data(noisy), 8, shuffle=True, collate_fn=mixed, generator=torch.Generator().manual_seed(3)
    ),
    "lists": lambda: DataLoader(Data(), 8, shuffle=True, collate_fn=as_lists),
    "dict": lambda: DataLoader(Data(), 8, shuffle=True, collate_fn=as_dict),
    "__getitems__": lambda: DataLoader(Standardised(), 8, shuffle=True),
    "__getitems__ of a subset": lambda: DataLoader(
        torch.utils.data.Subset(Standardised(), range(16)), 8, shuffle=True
    ),
}


def engine_of(layout, **recipe):
    torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
    engine = Engine({"layout": layout, **recipe})
    model = nn.Linear(4, 1)
    engine.setup(model, lambda m: torch.optim.SGD(m.parameters(), lr=0.05), loss=nn.functional.mse_loss)
    return engine


def inputs_and_target(batch):
    if isinstance(batch, dict):
        return batch["rows"] * batch["scale"], batch["labels"]
    return [torch.stack(part) if isinstance(part, list) else part for part in batch]


def train(engine, loader, epochs=2, after_batch=lambda batch: None, save=None):
    losses = []
    for epoch in range(epochs):
        for batch in engine.loader(loader):
            engine.train_batch(*inputs_and_target(batch))
            losses.append(engine.loss())
            engine.step()
            after_batch(batch)
            if save is not None and len(losses) == save[1]:
                engine.save(save[0])
    return losses


def change_weights(engine):
    sampler = WeightedRandomSampler(torch.ones(32), 32, generator=torch.Generator().manual_seed(2))
    loader = DataLoader(Data(), 8, sampler=sampler)
    part = engine.world.sample_part
    return train(engine, loader, after_batch=lambda batch: sampler.weights[part::2].mul_(1.1))


def change_indices(engine):
    sampler = SubsetRandomSampler(list(range(32)))

    def drop(batch):
        sampler.indices = sampler.indices[::-1] if engine.world.sample_part else sampler.indices
    return train(engine, DataLoader(Data(), 8, sampler=sampler), after_batch=drop)


def change_length(engine):
    kept = list(range(32))
    loader = DataLoader(kept, 8)

    def drop(batch):
        del kept[(8 if engine.world.sample_part else 16):]
    for epoch in range(2):
        for batch in engine.loader(loader):
            engine.train_batch(ROWS[batch], ROWS[batch][:, :1])
            engine.step()
        drop(batch)


def change_weights_on_all_ranks(engine):
    sampler = WeightedRandomSampler(torch.ones(32), 32, generator=torch.Generator().manual_seed(2))
    return train(engine, DataLoader(Data(), 8, sampler=sampler), after_batch=lambda batch: sampler.weights[:9].mul_(2))


class Filled(Data):
    """A data set that keeps what it has read in a tensor."""

    def __init__(self):
        super().__init__()
        self.rows, self.has = torch.zeros(32, 4), torch.zeros(32)

    def __getitem__(self, number):
        self.rows[number], self.has[number] = ROWS[number], 1
        return self.rows[number], self.labels[number]


class OfTable(Data):
    def __getitem__(self, number):
        return ROWS[number], TABLE[number]


class OfArray(Data):
    def __init__(self):
        super().__init__()
        self.labels = self.labels.numpy().copy()


TABLE = ROWS.sum(1, keepdim=True)


def write(engine, data, table, rows=None, **options):
    rows = slice(engine.world.sample_part, None, 2) if rows is None else rows

    def change(batch):
        table[rows] += 0.5
    return train(engine, DataLoader(data, 8, **options), after_batch=change)


def write_attribute(engine):
    data = Data()
    return write(engine, data, data.labels)


def write_array(engine):
    data = OfArray()
    return write(engine, data, data.labels)


def write_tensor_dataset(engine):
    data = torch.utils.data.TensorDataset(ROWS, ROWS[:, :1].clone())
    return write(engine, data, data.tensors[1])


def write_inside_of_subset(engine):
    data = Data()
    return write(engine, torch.utils.data.Subset(data, range(32)), data.labels)


def write_variable(engine):
    return write(engine, OfTable(), TABLE)


def write_before_workers(engine):
    data = Data()
    return write(engine, data, data.labels, num_workers=1)


def write_with_whole_batches(engine):
    data = Data()
    return write(engine, data, data.labels, collate_fn=mixed)


def write_the_same(engine):
    data = Data()
    return write(engine, data, data.labels, rows=slice(0, 9))


def create_differently(engine):
    data = Data()
    data.labels += engine.world.rank
    return train(engine, DataLoader(data, 8))


def fill_a_cache(engine):
    return train(engine, DataLoader(Filled(), 8, shuffle=True))


WRITES = (
    write_attribute,
    write_array,
    write_tensor_dataset,
    write_inside_of_subset,
    write_variable,
    write_before_workers,
    write_with_whole_batches,
    write_the_same,
    create_differently,
    fill_a_cache,
)
CHANGES = {each.__name__: each for each in (change_weights, change_indices, change_length, change_weights_on_all_ranks)}
CHANGES |= {each.__name__: each for each in WRITES}


def said(call, *given):
    try:
        return call(*given)
    except UsageError as error:
        return str(error)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    out, found = Path(sys.argv[1]), {}
    for name, make in WHOLE.items():
        for layout in ("dp=2", "shard=2"):
            found[f"{name} {layout}"] = said(train, engine_of(layout), make())
    said(train, engine_of("dp=2"), DataLoader(Drawing(noisy), 8, shuffle=True))
    said(train, engine_of("shard=2"), DataLoader(Data(), 8, shuffle=True))
    found["pad in micro-batches"] = said(train, engine_of("dp=2", memory={"micro_batches": 2}), WHOLE["pad"]())
    for name, change in CHANGES.items():
        found[name] = said(change, engine_of("dp=2"))
    engine = engine_of("dp=2")
    found["resume"] = train(engine, WHOLE["mix noisy samples"](), save=(out.parent / "state", 6))
    engine = engine_of("dp=2")
    loader = engine.loader(WHOLE["mix noisy samples"]())
    engine.load(out.parent / "state")
    for rows, labels in loader:
        engine.train_batch(rows, labels)
        found.setdefault("resumed", []).append(engine.loss())
        engine.step()
    twofold = lambda: DataLoader(Data(), 8, collate_fn=twice)
    found["twice"] = said(train, engine_of("dp=2"), twofold())
    found["twice, without checks"] = said(train, engine_of("dp=2", checks={"samples": False}), twofold())
    if torch.distributed.get_rank() == 0:
        out.write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
'''
WHOLE = (
    "pad",
    "mix",
    "mix noisy samples",
    "mix in workers",
    "generator",
    "lists",
    "dict",
    "__getitems__",
    "__getitems__ of a subset",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data_loaders")
    (folder / "train.py").write_text(PROGRAM)
    done = on_ranks(2, folder / "train.py", folder / "result.json")
    assert (folder / "result.json").exists(), done.stderr[-4000:]
    return folder, done.stderr


@pytest.fixture(scope="module")
def found(ran):
    return json.loads((ran[0] / "result.json").read_text())


@pytest.fixture(scope="module")
def program(ran):
    """The program, in this process."""
    spec = importlib.util.spec_from_file_location("train_by_data_loaders", ran[0] / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("layout", ["dp=2", "shard=2"])
@pytest.mark.parametrize("name", WHOLE)
def test_functions_that_get_whole_batches_train_as_on_one_process(program, found, name, layout):
    alone = program.train(program.engine_of(""), program.WHOLE[name]())
    assert found[f"{name} {layout}"] == pytest.approx(alone, rel=1e-5)


def test_whole_batches_are_split_into_the_micro_batches_of_one_process(program, found):
    alone = program.train(program.engine_of("", memory={"micro_batches": 2}), program.WHOLE["pad"]())
    assert found["pad in micro-batches"] == pytest.approx(alone, rel=1e-5)


def test_one_notice_says_what_whole_batches_cost(ran):
    says = (
        "each rank reads whole batches of Texts, because its collate_fn padded gets all samples of a batch; it reads 2"
    )
    assert ran[1].count(f"layout dp=2: {says} times") == 1


def test_one_notice_says_that_samples_draw_random_numbers(ran):
    assert ran[1].count("draw random numbers") == ran[1].count("dp=2: the samples of Drawing draw random numbers") == 1


def test_a_run_with_whole_batches_resumes_exactly(found):
    assert found["resumed"] == found["resume"][6:]


def test_batches_of_which_samples_cannot_be_selected_are_refused(found):
    assert "a batch of 8 samples of which this rank cannot select its own" in found["twice"]
    assert len(found["twice, without checks"]) == 8


@pytest.mark.parametrize(
    ("case", "names", "sampler"),
    [
        ("change_weights", "weights", "WeightedRandomSampler"),
        ("change_indices", "indices", "SubsetRandomSampler"),
        ("change_length", "data_source", "SequentialSampler"),
    ],
)
def test_samplers_that_differ_between_ranks_are_refused(found, case, names, sampler):
    assert found[case].startswith(f"ranks got different batches: the {names} of {sampler} differ between ranks.")


def test_samplers_that_all_ranks_change_alike_are_allowed(program, found):
    alone = program.change_weights_on_all_ranks(program.engine_of(""))
    assert found["change_weights_on_all_ranks"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("write_attribute", "Data.labels"),
        ("write_array", "OfArray.labels"),
        ("write_tensor_dataset", "TensorDataset.tensors[1]"),
        ("write_inside_of_subset", "Subset.dataset.labels"),
        ("write_variable", "OfTable.TABLE"),
        ("write_before_workers", "Data.labels"),
        ("write_with_whole_batches", "Data.labels"),
        ("create_differently", "Data.labels"),
    ],
)
def test_data_that_differ_between_ranks_are_refused(found, case, name):
    assert found[case].startswith(f"{name} of the data set differs between ranks when an epoch begins")


@pytest.mark.parametrize("case", ["write_the_same", "fill_a_cache"])
def test_data_that_all_ranks_change_alike_and_caches_are_allowed(program, found, case):
    assert found[case] == pytest.approx(program.CHANGES[case](program.engine_of("")), rel=1e-5)
