"""Each setting in a real program that nobody edited: does it take hold, and does training stay what it was?"""

from __future__ import annotations

import pytest

from paceline.record.read import read_run

SHUFFLED = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        {draws}
        return torch.tensor([float(index)]), index % 3

if __name__ == "__main__":
    torch.manual_seed(7)
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers={workers})
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(epoch, x.flatten().tolist(), loss.item().hex())
    print(type(iter(loader)).__mro__[-2].__name__, len(loader))
"""


def shuffled(workers: int = 0, draws: str = "pass") -> str:
    return SHUFFLED.format(workers=workers, draws=draws)


BARE: dict[int, str] = {}  # output without a recipe, by the number of workers


@pytest.mark.parametrize(
    "workers, recipe, key",
    [
        (0, {"loader": {"num_workers": 2}}, "loader.num_workers"),
        (2, {"loader": {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True}}, "loader.prefetch_factor"),
        (2, {"loader": {"num_workers": 0, "threads": 2}}, "loader.threads"),
        (2, {"loader": {"num_workers": 0, "threads": 2, "cache": True}}, "loader.cache"),
    ],
)
def test_the_loader_gives_the_same_batches_in_the_same_order(ran, workers, recipe, key):
    """Shuffling and dropout draw from one stream of random numbers: none may be drawn more or less in three epochs."""
    if workers not in BARE:
        BARE[workers] = ran(shuffled(workers)).out
    changed = ran(shuffled(workers), recipe)
    assert (changed.code, changed.out) == (0, BARE[workers]), changed.err
    assert key in changed.held


def test_batches_that_threads_make_are_not_said_to_be_made_by_the_training_thread(ran, tmp_path):
    ran(shuffled(2), {"loader": {"num_workers": 0, "threads": 2}})
    (rank,) = read_run(tmp_path / "run").ranks
    assert [one["threads"] for one in rank.summary["loaders"]] == [2]


def test_batches_of_kept_samples_are_counted_as_those_that_are_made(ran, tmp_path):
    changed = ran(shuffled(0), {"loader": {"cache": True}})
    assert "loader.cache" in changed.held
    (rank,) = read_run(tmp_path / "run").ranks
    assert [(one["meter"]["batches"], one["meter"]["samples"]) for one in rank.summary["loaders"]] == [(18, 72)]


def test_kept_workers_would_shift_the_shuffle_if_nothing_were_drawn_for_them(ran):
    """The trap itself, so that the check above can fail: the program that keeps its workers shuffles otherwise."""
    kept = shuffled(2).replace("num_workers=2", "num_workers=2, persistent_workers=True")
    assert ran(kept).out != ran(shuffled(2)).out


@pytest.mark.parametrize(
    "workers, recipe",
    [
        ("1", {"loader": {"num_workers": 2, "persistent_workers": True}}),
        ("1, persistent_workers=True", {"loader": {"num_workers": 0, "threads": 2}}),
    ],
    ids=["kept", "not kept"],
)
def test_a_loader_made_after_anothers_likeness_shuffles_as_it_did(ran, workers, recipe):
    """As Accelerate does it, and with it Hugging Face's Trainer: what the first is given is not what was asked."""
    names = "('dataset', 'num_workers', 'batch_size', 'sampler', 'persistent_workers')"
    again = f"loader = DataLoader(**{{name: getattr(loader, name) for name in {names}}})\n    model ="
    source = SHUFFLED.format(workers=workers, draws="pass").replace("model =", again, 1)
    bare, changed = ran(source), ran(source, recipe)
    assert (changed.code, changed.out) == (0, bare.out), changed.err


def test_samples_checked_beside_training_leave_its_random_numbers_alone(ran):
    """Sample 4 is made once more while the first batch trains: what dropout drew since must not be drawn again."""
    slow = "__import__('time').sleep({4: 0.45}.get(index, 0.1 * (index < 4)))"
    source = shuffled(0, draws=slow).replace("shuffle=True", "shuffle=False").replace("range(3)", "range(1)")
    bare, changed = ran(source), ran(source, {"loader": {"threads": 2, "cache": True}})
    assert (changed.code, changed.out) == (0, bare.out), changed.err
    assert "loader.cache" in changed.held


def test_samples_that_are_another_each_time_are_not_kept(ran):
    source = shuffled(0, draws="index = index + 0 * torch.rand(1).item() + torch.rand(1).item()").replace(
        "index % 3", "int(index) % 3"
    )
    bare, changed = ran(source), ran(source, {"loader": {"cache": True}})
    assert changed.out == bare.out
    assert "changes each time" in changed.refused["loader.cache"]


MANY = """
    def __getitems__(self, indices):
        return [self[index] for index in indices]
"""


@pytest.mark.parametrize("more, kept", [("", True), (MANY, False)], ids=["one by one", "many at a time"])
def test_samples_of_a_part_of_a_dataset_are_kept_where_they_are_fetched_one_by_one(ran, more, kept):
    source = shuffled(0).replace("\nif __name__", more + "\nif __name__")
    source = source.replace("DataLoader(Numbers()", "DataLoader(torch.utils.data.random_split(Numbers(), [16, 8])[0]")
    bare, changed = ran(source), ran(source, {"loader": {"cache": True}})
    assert (changed.code, changed.out) == (0, bare.out), changed.err
    assert ("loader.cache" in changed.held) is kept
    assert ("several samples at a time" in changed.refused.get("loader.cache", "")) is not kept


@pytest.mark.parametrize("held, cached", [(False, False), (True, True)], ids=["dropped", "held by the program"])
def test_a_dataset_for_each_epoch_is_not_cached(ran, held, cached):
    """No cached sample would be read again, and old datasets would stay in memory."""
    source = shuffled(0).replace("range(3)", "range(4)")
    held_by = "every.append(loader.dataset); " if held else ""
    source = source.replace(
        "for x, y in loader:",
        f"loader = DataLoader(Numbers(), 4, shuffle=True); {held_by}x = 0\n        for x, y in loader:",
    )
    source = source.replace("import torch", "import torch; every = []", 1)
    bare, changed = ran(source), ran(source, {"loader": {"cache": True}})
    assert bare.code == 0 and (changed.code, changed.out) == (0, bare.out), changed.err
    assert ("a new dataset for each epoch" in changed.refused.get("loader.cache", "")) is not cached


def test_samples_that_are_others_in_a_later_epoch_are_kept_no_more(ran):
    """What is made twice at first is the same: the dataset is told of each epoch, or finds out by itself."""
    source = shuffled(0).replace(
        "for x, y in loader:", "loader.dataset.epoch = epoch // 2\n        for x, y in loader:"
    )
    source = source.replace("float(index)", "float(index) + 100 * self.epoch").replace("range(3)", "range(4)")
    bare, changed = ran(source), ran(source, {"loader": {"cache": True}})
    assert "(100" not in bare.out and "102.0" in bare.out
    assert (changed.code, changed.out) == (0, bare.out), changed.err
    assert "the program changes `epoch`" in changed.refused["loader.cache"]


def test_a_collate_function_that_changes_samples_gets_copies(ran):
    """As some of those do that take labels out, or scale pictures where they are."""
    collate = """
def collate(samples):
    for sample in samples:
        sample["x"] += 1
    labels = torch.tensor([sample.pop("y") for sample in samples])
    return torch.stack([sample["x"] for sample in samples]), labels

if __name__"""
    source = shuffled(0).replace("\nif __name__", collate).replace("shuffle=True", "shuffle=True, collate_fn=collate")
    source = source.replace("return torch.tensor([float(index)]), index % 3", 'return {"x": torch.ones(1), "y": 1}')
    bare, changed = ran(source), ran(source, {"loader": {"cache": True}})
    assert (changed.code, changed.out) == (0, bare.out), changed.err
    assert "loader.cache" in changed.held


@pytest.mark.parametrize("order", ["torch.arange(24)", "[[i] for i in range(24)]"], ids=["tensors", "lists"])
def test_samples_are_kept_by_what_their_sampler_gives(ran, order):
    source = shuffled(0).replace("shuffle=True", f"sampler={order}")
    source = source.replace("def __getitem__(self, index):", "made = 0\n    def __getitem__(self, index):")
    source = source.replace("pass", "Numbers.made += 1; index = index[0] if isinstance(index, list) else int(index)")
    bare, changed = ran(source + "    print(Numbers.made)\n"), ran(source, {"loader": {"cache": True}})
    assert (changed.code, changed.out) == (0, "".join(bare.out.splitlines(keepends=True)[:-1])), changed.err
    made = ran(source + "    print(Numbers.made)\n", {"loader": {"cache": True}}).out.splitlines()[-1]
    assert int(made) < 40 if "arange" in order else int(made) == 72


def test_batches_of_an_epoch_that_is_left_early_are_made_no_more(ran):
    source = """
    import gc, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset):
        made = 0
        def __len__(self):
            return 400
        def __getitem__(self, index):
            Numbers.made += 1
            time.sleep(0.1)
            return index

    next(iter(DataLoader(Numbers(), batch_size=2)))
    gc.collect()
    time.sleep(1.5)
    soon = Numbers.made
    time.sleep(0.7)
    print(soon, Numbers.made - soon)
    """
    soon, later = map(int, ran(source, {"loader": {"num_workers": 0, "threads": 1}}).out.split())
    assert later == 0
    assert (
        soon <= 12
    )  # of 400: two batches more were asked for, and samples of the first one are loaded again to compare


def test_threads_do_not_share_the_place_in_an_open_file(ran, tmp_path):
    (tmp_path / "numbers").write_bytes(bytes(range(40)))
    source = """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset, Subset

    class Numbers(Dataset):
        def __init__(self):
            self.file = open("numbers", "rb")
        def __len__(self):
            return 40
        def __getitem__(self, index):
            self.file.seek(index)
            time.sleep(0.001)
            return self.file.read(1)[0]

    print([x for batch in DataLoader(Subset(Numbers(), range(40)), batch_size=2) for x in batch.tolist()])
    """
    changed = ran(source, {"loader": {"num_workers": 0, "threads": 4}})
    assert changed.out == f"{list(range(40))}\n"
    assert "one open BufferedReader" in changed.refused["loader.threads"]


STREAM = """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(12))

if __name__ == "__main__":
    seen = [x for batch in DataLoader(Stream(), batch_size=4) for x in batch.tolist()]
    print(seen)
"""


@pytest.mark.parametrize("recipe", [{"num_workers": 2}, {"num_workers": 0, "threads": 2}])
def test_a_stream_is_never_read_twice(ran, recipe):
    changed = ran(STREAM, {"loader": recipe})
    assert changed.out.strip() == str(list(range(12)))
    assert any("IterableDataset" in why for why in changed.refused.values())


def test_autocast_is_around_the_model_and_not_around_the_loss(ran):
    source = """
    import torch
    seen = []
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(64, 64)
        def forward(self, x):
            y = self.inner(x)
            seen.append(y.dtype)
            return {"logits": y, "both": (y, x)}
    net, criterion = Net(), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        out = net(torch.ones(8, 64))
        loss = criterion(out["logits"], torch.zeros(8, 64))
        loss.backward()
        optimizer.step()
    print(seen[-1], out["logits"].dtype, out["both"][0].dtype, loss.dtype, net.inner.weight.grad.dtype)
    print(sorted(net.state_dict()))
    """
    changed = ran(source, {"precision": {"autocast": "bf16"}})
    assert changed.out.splitlines()[0] == "torch.bfloat16" + 4 * " torch.float32"
    assert changed.out.splitlines()[1] == ran(source).out.splitlines()[1]
    assert changed.held["precision.autocast"] == "Net computes in bf16 on cpu"


@pytest.mark.parametrize(
    "given, taken", [("", True), (", foreach=True", False), (", fused=False", False)], ids=["free", "foreach", "fused"]
)
def test_an_optimizer_that_the_program_has_chosen_is_left_alone(ran, given, taken):
    source = f"""
    import torch
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01{given})
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print(optimizer.defaults["fused"])
    """
    changed = ran(source, {"optimizer": {"fused": True}})
    assert (changed.out.strip() == "True") == taken
    assert ("optimizer.fused" in changed.held) == taken


def test_a_program_that_asks_for_other_threads_is_not_heard(ran):
    source = """
    import torch
    torch.set_num_threads(7)
    print(torch.get_num_threads())
    """
    assert ran(source, {"compute": {"num_threads": 1}}).out.strip() == "1"


def test_loader_workers_keep_their_one_thread(ran):
    """torch gives each worker one; as many as the training process has would crowd the cores."""
    source = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Threads(Dataset):
        def __len__(self):
            return 2
        def __getitem__(self, index):
            return torch.get_num_threads()

    if __name__ == "__main__":
        print(torch.get_num_threads(), next(iter(DataLoader(Threads(), 2, num_workers=1))).tolist())
    """
    assert ran(source, {"compute": {"num_threads": 2}}).out.strip() == "2 [1, 1]"


def test_channels_last(ran):
    source = """
    import torch
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    hidden = []
    net[0].register_forward_hook(lambda m, i, o: hidden.append(i[0].is_contiguous(memory_format=torch.channels_last)))
    net(torch.rand(2, 3, 8, 8))
    print(hidden)
    """
    assert ran(source).out.strip() == "[False]"
    assert ran(source, {"compute": {"channels_last": True}}).out.strip() == "[True]"


def test_what_cannot_be_applied_is_told_and_the_program_goes_on(ran):
    changed = ran("import torch\nprint('trained')", {"precision": {"tf32": True}, "nonsense": {"key": 1}})
    assert (changed.code, changed.out, changed.err) == (0, "trained\n", "")
    assert set(changed.refused) == {"precision.tf32", "nonsense.key"}


def test_an_evaluation_keeps_the_workers_that_the_program_gave_it(ran):
    source = """
    import torch
    from torch.utils.data import DataLoader, get_worker_info

    class Where(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return get_worker_info() is not None

    if __name__ == "__main__":
        loader = DataLoader(Where(), batch_size=4)
        for _ in range(2):
            print("train", [batch.tolist() for batch in loader])
            with torch.no_grad():
                print("evaluate", [batch.tolist() for batch in loader])
        print(loader.num_workers)
    """
    done = ran(source, {"loader": {"num_workers": 1, "persistent_workers": True}})
    inside, outside = f"[{[True] * 4}]", f"[{[False] * 4}]"
    assert done.out.splitlines() == [*[f"train {inside}", f"evaluate {outside}"] * 2, "1"], done.err


def test_an_evaluation_gets_the_workers_that_a_recipe_has_for_it(ran):
    """And training does not: its loader and its random numbers are those of the program."""
    source = """
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

    class Held(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return get_worker_info() is not None

    class Stream(IterableDataset):
        def __iter__(self):
            yield get_worker_info() is not None

    if __name__ == "__main__":
        torch.manual_seed(0)
        train, held, stream = (DataLoader(data, batch_size=4) for data in (Held(), Held(), Stream()))
        for _ in range(2):
            print("train", [batch.tolist() for batch in train], torch.rand(()).item().hex())
            with torch.no_grad():
                print("evaluate", [batch.tolist() for batch in held], [batch.tolist() for batch in stream])
    """
    bare, done = ran(source), ran(source, {"loader": {"evaluation_workers": 2}})
    assert done.out == bare.out.replace(
        "evaluate [[False, False, False, False]]", "evaluate [[True, True, True, True]]"
    )
    assert done.out != bare.out
    assert "loads Held in batches of 4 with 2 workers instead of 0" in done.held["loader.evaluation_workers"]
    assert "IterableDataset" in done.refused["loader.evaluation_workers"]
