"""The loader: batches in their order on any ranks and threads, resumed anywhere, in spite of bad samples."""

from __future__ import annotations

import gc
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import time
import traceback
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.data.making import converted, pixels

from paceline.core.errors import UsageError
from paceline.data.convert.convert import Options, convert
from paceline.data.format.index import DamagedData
from paceline.data.loader.loader import Loader
from paceline.data.loader.processes import manner_of
from paceline.data.order.ranks import Share, share_of_host
from paceline.data.reading.crops import CenterCrop, RandomResizedCrop
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.sources.image_folder import image_folder
from paceline.hardware.operating_system import LocalFiles


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 60, restart_marker_rows=1)


class Numbers:
    """A Dataset whose samples are their numbers."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        return number


def ids_of(loader: Loader) -> list[int]:
    return [number for batch in loader for number in batch.tolist()]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def loader_threads() -> int:
    return sum(thread.name.startswith("paceline") or thread.daemon for thread in threading.enumerate())


def test_batches_of_pictures(shards):
    loader = Loader(shards, 8, transform=RandomResizedCrop(32), threads=2)
    batches = list(loader)
    assert len(batches) == len(loader) == 8
    images, labels = batches[0]
    assert (images.shape, images.dtype) == ((8, 3, 32, 32), torch.uint8)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert batches[-1][0].shape[0] == 60 - 7 * 8
    assert labels.dtype == torch.int64


def shape_and_label(sample):
    return sample["image"].shape, sample["label"]


@pytest.mark.parametrize("turned", [1, 6])
def test_pictures_of_every_kind_become_the_pixels_that_pil_makes(tmp_path, turned):
    """Four colours, grey, transparent, sixteen bits, turned by EXIF: as PIL opens them, without turning."""
    folder = tmp_path / "pictures" / "a"
    folder.mkdir(parents=True)
    plain = Image.fromarray(pixels(40, 56))
    exif = Image.Exif()
    exif[0x0112] = turned
    plain.save(folder / "0.jpg", exif=exif, quality=95)
    plain.convert("CMYK").save(folder / "1.jpg", quality=95)
    plain.convert("L").save(folder / "2.jpg", quality=95)
    plain.convert("RGBA").save(folder / "3.png")
    plain.save(folder / "4.png", exif=exif)
    plain.convert("P", palette=Image.Palette.ADAPTIVE).save(folder / "5.png")
    plain.save(folder / "6.webp", lossless=True)
    source = image_folder(tmp_path / "pictures")
    convert(source, tmp_path / "shards", Options(seed=None), 1, lambda done, whole: None)
    loader = Loader(tmp_path / "shards", 1, transform=dict, collate_fn=list, threads=0, exact=True, image_mode="RGB")
    found = [sample["image"] for (sample,) in loader]
    for number, path in enumerate(sorted(folder.iterdir())):
        expected = np.asarray(Image.open(path).convert("RGB")).astype(int)
        assert np.abs(found[number] - expected).max() <= (0 if number != 1 else 2), path.name
    assert len(found) == 7
    assert sum(len(labels) for _, labels in Loader(tmp_path / "shards", 2, transform=CenterCrop(16))) == 7


def test_every_picture_is_the_one_that_belongs_to_its_label(shards):
    loader = Loader(shards, 7, shuffle=True, transform=shape_and_label, collate_fn=list)
    seen = [one for batch in loader for one in batch]
    places = shards.places(np.arange(60))
    arrays = shards.index(0).arrays
    assert len(seen) == 60
    expected = sorted(shards.numbers("label", places).tolist())
    assert sorted(label for _, label in seen) == expected
    assert arrays["image.height"].max() > 40


@pytest.mark.parametrize("exact", [False, True])
def test_threads_and_ranks_change_no_pixel(shards, exact):
    """The crop of a sample is a function of seed, epoch and its number."""

    def pictures(threads: int, world: int) -> dict[bytes, int]:
        found = {}
        for rank in range(world):
            own = {"threads": threads, "exact": exact}
            loader = Loader(shards, 5, True, seed=3, transform=RandomResizedCrop(16), rank=rank, world=world, **own)
            for images, labels in loader:
                found |= {image.numpy().tobytes(): int(label) for image, label in zip(images, labels)}
        return found

    assert pictures(0, 1) == pictures(3, 1) == pictures(2, 2)
    assert len(pictures(0, 1)) == 60


def test_epochs_differ_and_repeat(shards):
    loader = Loader(shards, 60, True, transform=CenterCrop(16))
    first, second = (next(iter(loader))[0].clone() for _ in range(2))
    assert not torch.equal(first, second)
    loader.set_epoch(0)
    assert torch.equal(next(iter(loader))[0], first)


CUTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 6)), max_size=3)  # ranks, batch, steps


@settings(max_examples=120, deadline=None)
@given(st.integers(4, 97), CUTS, st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_stopped_and_resumed_anywhere_every_sample_comes_once(count, cuts, world, batch, shuffle):
    """Several stops, after each another number of ranks and batch size: nothing is lost, nothing comes twice.

    Only what is left when fewer samples than ranks are there is left out, so that all ranks make as many steps.
    """
    seen: list[int] = []
    state = None
    for ranks, size, steps in [*cuts, (world, batch, 10**6)]:
        own = [Loader(Numbers(count), size, shuffle, rank=r, world=ranks, threads=0) for r in range(ranks)]
        for loader in own:
            if state is not None:
                loader.load_state_dict(state)
            if steps:
                seen += [number for part in islice(loader, steps) for number in part.tolist()]
        state = own[0].state_dict()
        assert all(loader.state_dict() == state for loader in own)
        if state["epoch"]:
            break
    assert len(set(seen)) == len(seen)
    assert len(seen) > count - ranks
    assert state["epoch"] == 1


def test_a_loop_that_is_left_begins_anew_and_a_state_goes_on():
    loader = Loader(Numbers(20), 2, threads=0)
    assert [batch.tolist() for batch in islice(loader, 2)] == [[0, 1], [2, 3]]
    assert loader.state_dict()["consumed"] == 4
    state = loader.state_dict()
    assert ids_of(loader) == list(range(20))
    loader.load_state_dict(state)
    loader.set_epoch(state["epoch"])  # as trainers do
    assert ids_of(loader) == list(range(4, 20))


def test_a_loader_that_is_sent_goes_on_where_it_was(shards):
    loader = Loader(shards, 4, True, CenterCrop(16), seed=7, threads=2)
    list(islice(loader, 5))
    sent = pickle.loads(pickle.dumps(loader))
    rest = [labels.tolist() for _, labels in sent]
    loader.load_state_dict(loader.state_dict())
    assert rest == [labels.tolist() for _, labels in loader]
    assert len(rest) == 10


def test_there_is_one_loop_at_a_time(shards):
    loader = Loader(shards, 4, transform=CenterCrop(16), threads=2)
    first = iter(loader)
    next(first)
    files = open_files()
    assert len(list(loader)) == 15
    with pytest.raises(UsageError, match="a second loop over the same Loader"):
        next(first)
    assert open_files() < files


def test_states_of_something_else():
    loader = Loader(Numbers(20), 2)
    with pytest.raises(UsageError, match="21 samples, and this one has 20"):
        loader.load_state_dict(Loader(Numbers(21), 2).state_dict())
    with pytest.raises(UsageError, match="it has no seed, epoch"):
        loader.load_state_dict({"samples": 20})


@pytest.mark.parametrize(
    "ends, expected", [("drop", [0, 1, 2, 3, 4, 5, 6, 7]), ("pad", None), ("even", list(range(10)))]
)
def test_the_last_step(ends, expected):
    ranks = [Loader(Numbers(10), 2, ends=ends, rank=rank, world=2, threads=0) for rank in range(2)]
    found = [[part.tolist() for part in loader] for loader in ranks]
    assert len(found[0]) == len(found[1]) == len(ranks[0])
    seen = sorted(number for own in found for part in own for number in part)
    assert seen == (expected if expected is not None else sorted([*range(10), 0, 1]))


@pytest.mark.parametrize("how", ["end", "close", "error", "break", "interrupt"])
def test_nothing_is_left_open(shards, how):
    list(islice(Loader(shards, 4, transform=CenterCrop(16)), 1))  # what is made once for good
    gc.collect()
    files, threads = open_files(), loader_threads()
    loader = Loader(shards, 4, True, transform=CenterCrop(16), threads=3)
    try:
        for step, _ in enumerate(loader):
            if step == 3 and how == "error":
                raise ValueError
            if step == 3 and how == "interrupt":
                raise KeyboardInterrupt
            if step == 3 and how == "break":
                break
    except (ValueError, KeyboardInterrupt):
        pass
    if how == "close":
        loader.close()
    assert (open_files(), loader_threads()) == (files, threads)


def test_memory_stays_within_its_budget(shards):
    budget = 3 * max(int(row["end"] - row["begin"]) for row in shards.blocks)
    held = []
    loader = Loader(shards, 4, True, transform=CenterCrop(16), threads=1, memory_bytes=budget)
    for _ in loader:
        held.append(loader._store.held_bytes)
    assert 0 < max(held) <= budget


def harmed(shards: ShardedDataset, folder, number: int) -> tuple[ShardedDataset, str]:
    """A copy in which one sample is damaged."""
    import shutil

    shutil.copytree(shards.folder, folder)
    copy = ShardedDataset(folder)
    (place,) = copy.places(np.array([number]))
    with copy.file(place.shard).open("r+b") as file:
        file.seek(int(copy.index(place.shard).arrays["image.offset"][place.row]) + 40)
        file.write(b"damaged!")
    return copy, copy.name(place)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_damaged_sample_is_named(shards, tmp_path, threads):
    broken, name = harmed(shards, tmp_path / "broken", 17)
    loader = Loader(broken, 4, transform=CenterCrop(16), threads=threads)
    with pytest.raises(DamagedData) as caught:
        list(loader)
    assert name in str(caught.value)
    assert "checksum" in str(caught.value)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_damaged_samples_are_skipped_counted_and_reported(shards, tmp_path, batch_size, caplog):
    broken, name = harmed(shards, tmp_path / "broken", 17)
    loader = Loader(broken, batch_size, transform=CenterCrop(16), threads=2, on_error="skip")
    sizes = [len(labels) for _, labels in loader]
    assert set(sizes) == {batch_size}
    assert len(sizes) == len(loader) == 60 // batch_size  # all ranks make the same number of steps
    report = loader.report()
    assert report.bad_samples == 1
    assert [bad.name for bad in report.bad] == [name]
    assert [one.message.partition(":")[0] for one in caplog.records] == [
        f"1 bad samples were replaced by others, such as {name}"
    ]


def test_a_shard_that_was_cut_off(shards, tmp_path):
    broken, _ = harmed(shards, tmp_path / "broken", 17)
    os.truncate(broken.file(1), 5000)
    loader = Loader(broken, 4, transform=CenterCrop(16), on_error="skip")
    assert {len(labels) for _, labels in loader} == {4}
    assert loader.report().bad_samples > 2
    with pytest.raises(DamagedData, match=f"{broken.contents.shards[1].file}.*truncated|checksum"):
        list(Loader(broken, 4, transform=CenterCrop(16)))


def test_datasets_of_ones_own_raise_their_own_errors():
    class Bad(Numbers):
        def __getitem__(self, number: int) -> int:
            if number == 7:
                raise KeyError("seven")
            return number

    for made_by in ({"threads": 0}, {"processes": 2}):
        with pytest.raises(KeyError, match="seven"):
            list(Loader(Bad(10), 2, **made_by))
        loader = Loader(Bad(10), 2, on_error="skip", **made_by)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 6], [8, 9]]
        assert loader.report().bad[0].name == "sample 7"


class Lost:
    """Half of the samples cannot be had, in one piece."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> int:
        if number < self.bad:
            raise OSError("the shard is lost")
        return number


@pytest.mark.parametrize("made_by", [{"threads": 0}, {"threads": 2}, {"processes": 2}])
def test_ranks_make_the_same_number_of_steps_whatever_is_lost(made_by):
    """A rank with fewer steps would leave the others waiting for its gradients."""
    loaders = [Loader(Lost(20), 5, on_error="skip", rank=rank, world=2, **made_by) for rank in (0, 1)]
    batches = [[batch.tolist() for batch in loader] for loader in loaders]
    assert [len(own) for own in batches] == [4, 4]
    assert all(len(batch) == 5 and min(batch) >= 20 for own in batches for batch in own)
    assert sum(loader.report().bad_samples for loader in loaders) == 20
    assert batches == [[batch.tolist() for batch in loader] for loader in loaders]  # always the same ones


@pytest.mark.parametrize("made_by", [{"threads": 0}, {"processes": 1}])
def test_a_data_set_without_a_good_sample_ends_the_loop(made_by):
    with pytest.raises(DamagedData, match="all samples of a batch are bad"):
        list(Loader(Lost(40), 5, on_error="skip", **made_by))


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"batch_size": 0}, "of 1 or more|must be 1 or more"),
        ({"rank": 2, "world": 2}, "rank is 2, and world is 2"),
        ({"transform": CenterCrop(8), "collate_fn": list}, "leave collate_fn= out"),
        ({"workers": 2}, "no setting workers; its settings are seed, window"),
    ],
)
def test_what_cannot_be_asked(shards, wrong, said):
    with pytest.raises(UsageError, match=said):
        Loader(shards, **{"batch_size": 2, **wrong})
    with pytest.raises(UsageError, match="with your own Dataset, transform"):
        Loader(Numbers(3), transform=CenterCrop(8))


def test_the_report_names_stages(shards):
    loader = Loader(shards, 8, transform=RandomResizedCrop(32))
    assert loader.report().slowest is None
    list(loader)
    stages = {stage.name: stage for stage in loader.report().stages}
    assert {"read", "decode", "transform"} <= set(stages)
    assert all(stage.cpu_s >= 0 and stage.samples > 0 for stage in stages.values())
    assert loader.report().slowest in stages


# -- data sets of one's own ----------------------------------------------------------------------------


class Drawing(Numbers):
    """Samples that draw from all generators that there are."""

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number, random.random(), np.random.rand(), torch.rand(()).item()])


class Holding(Numbers):
    """Samples that hold the interpreter."""

    def __getitem__(self, number: int) -> int:
        return number + 0 * sum(range(30_000))


def by_number(loader: Loader) -> dict[int, list[float]]:
    return {int(row[0]): row[1:].tolist() for batch in loader for row in batch}


def test_what_samples_draw_depends_on_seed_epoch_and_number_alone():
    found = []
    for batch, processes, world in ((4, 1, 1), (7, 2, 1), (3, 1, 2)):
        own = [Loader(Drawing(24), batch, True, seed=5, processes=processes, rank=r, world=world) for r in range(world)]
        found.append({number: drawn for loader in own for number, drawn in by_number(loader).items()})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 24
    assert by_number(Loader(Drawing(24), 5, True, seed=5, threads=0)) == found[0]
    loader = Loader(Drawing(24), 4, seed=5, processes=1)
    first, second = by_number(loader), by_number(loader)
    assert first == found[0]
    assert second[0] != first[0]


@pytest.mark.parametrize("how, processes", [({"threads": 2}, 2), ({"threads": 0}, 0)])  # threads cannot be used
def test_the_generators_of_the_training_are_left_alone(how, processes, caplog):
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    loader = Loader(Drawing(8), 4, **how)
    list(loader)
    assert loader.report().processes == processes
    assert ("2 processes make the samples instead of threads" in caplog.text) == bool(processes)
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


@pytest.mark.parametrize("kind, suits", [(Drawing, False), (Holding, False)])
def test_threads_are_used_where_they_can_be(kind, suits):
    manner = manner_of(kind(64).__getitem__, np.arange(64))
    assert manner.suits_threads == suits
    assert manner.draws == (kind is Drawing)


def test_a_busy_machine_hides_no_sample_that_holds_the_interpreter():
    spin = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        assert [manner_of(Holding(64).__getitem__, np.arange(64)).holds for _ in range(3)] == [True] * 3
    finally:
        for one in spin:
            one.kill()
            one.wait()


def test_a_bad_sample_says_nothing_while_it_is_found_out(capfd):
    def bad(number: int) -> int:
        raise RuntimeError("boom")

    manner_of(bad, np.arange(8))
    assert capfd.readouterr().err == ""


def test_samples_that_hold_the_interpreter_a_small_part_of_the_time_suit_threads():
    def mostly_waits(number: int) -> int:
        time.sleep(0.03)
        return sum(Holding(64)[number] for _ in range(10))

    assert [manner_of(mostly_waits, np.arange(64)).holds for _ in range(3)] == [False] * 3


def test_samples_that_wait_suit_threads():
    def wait(number: int) -> int:
        time.sleep(0.005)
        return number

    assert manner_of(wait, np.arange(64)).suits_threads


def mirrored_at_random(sample):
    return sample["image"][:, ::-1] if torch.rand(()) < 0.5 else sample["image"], sample["label"]


def test_functions_that_draw_get_processes_and_the_same_numbers_wherever_they_are(shards):
    found = []
    for how in ({}, {"threads": 2}, {"processes": 1}):
        loader = Loader(shards, 6, True, mirrored_at_random, list, seed=2, **how)
        found.append([(image.tobytes(), label) for batch in loader for image, label in batch])
        assert loader.report().processes > 0
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 60


def test_without_being_asked_processes_make_them():
    """Their samples may share a file between threads; each process has a copy of its own."""
    assert Loader(Numbers(8), 2).report().processes >= 1
    assert Loader(Numbers(8), 2, threads=0).report().processes == 0
    assert sorted(ids_of(Loader(Numbers(9), 2, processes=2))) == list(range(9))


# -- at its own pace -----------------------------------------------------------------------------------


def slowly(sample):
    time.sleep(0.004)
    return sample["label"]


def test_threads_are_raised_where_the_training_waits_and_stay_where_it_does_not(shards, monkeypatch):
    share = Share(cores=8, spare_cores=64.0, memory_bytes=1 << 30)
    monkeypatch.setattr("paceline.data.loader.loader.share_of_host", lambda: share)
    loader = Loader(shards, 4, True, transform=slowly)
    assert loader.threads == 2
    deadline = time.monotonic() + 60
    while not loader.report().changes and time.monotonic() < deadline:
        assert sorted(label for batch in loader for label in batch.tolist()) == sorted(labels(shards))
    report = loader.report()
    assert loader.threads >= 6
    assert report.wait_share > 0.5
    assert report.changes[0].knob == "threads" and report.changes[0].kept
    assert {"read", "decode", "transform", "collate", "hand-over"} <= {stage.name for stage in report.stages}
    loader.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("paceline")]


def labels(shards) -> list[int]:
    return shards.numbers("label", shards.places(np.arange(len(shards)))).tolist()


def test_a_share_of_the_machine_is_what_groups_and_the_launcher_leave(tmp_path, monkeypatch):
    for name, text in {
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/meminfo": "MemTotal: 67108864 kB\n",
        "sys/fs/cgroup/job/cpu.max": "800000 100000\n",
        "sys/devices/system/cpu/online": "0-31\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    files = LocalFiles(tmp_path, frozenset(range(16)))
    assert share_of_host(files) == Share(cores=8, spare_cores=24.0, memory_bytes=4 << 30)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert share_of_host(files) == Share(cores=2, spare_cores=30.0, memory_bytes=1 << 30, ranks=4)


# -- transforms of batches -----------------------------------------------------------------------------


def noisy(batch, generator):
    images, labels = batch
    return images.float() + torch.rand(images.shape, generator=generator), labels


@pytest.mark.parametrize("threads", [0, 3])
def test_batches_are_transformed_with_numbers_of_their_own(shards, threads):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    settings = {"batch_transform": noisy, "seed": 3}
    found = list(Loader(shards, 8, True, CenterCrop(16), threads=threads, **settings))
    resumed = Loader(shards, 8, True, CenterCrop(16), threads=2, **settings)
    resumed.load_state_dict({**resumed.state_dict(), "consumed": 24})
    for (images, _), (again, _) in zip(found[3:], resumed, strict=True):
        assert torch.equal(images, again)
    assert not torch.equal(found[0][0] - found[0][0].floor(), found[1][0] - found[1][0].floor())
    assert torch.equal(before, torch.get_rng_state())


def doubled(batch, generator):
    return 2 * batch + torch.randint(0, 1000, (1,), generator=generator) * 0


def test_batches_of_processes_are_transformed_there():
    loader = Loader(Numbers(20), 4, processes=2, batch_transform=doubled)
    assert ids_of(loader) == [2 * number for number in range(20)]
    stages = {stage.name: stage.samples for stage in loader.report().stages}
    assert (stages["transform"], stages["batch transform"]) == (20, 20)


# -- under frameworks ----------------------------------------------------------------------------------


def test_the_rank_is_what_the_launcher_says_when_the_loop_begins(monkeypatch):
    """Frameworks start ranks after a script has made its loaders."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    loaders = [Loader(Numbers(44), 4, True, threads=0) for _ in range(2)]
    assert [len(loader) for loader in loaders] == [11, 11]
    seen: list[int] = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert len(loader) == 5 + 1
        seen += ids_of(loader)
    assert sorted(seen) == list(range(44))


def test_who_sets_the_epoch_of_the_sampler_sets_that_of_the_loader():
    """As Lightning does, which takes all batches of an epoch and never asks for one more."""
    plain = Loader(Numbers(20), 4, True, threads=0)
    epochs = [ids_of(plain) for _ in range(3)]
    loader = Loader(Numbers(20), 4, True, threads=0)
    for epoch in (1, 2):
        loader.sampler.set_epoch(epoch)
        assert [number for batch in islice(loader, len(loader)) for number in batch.tolist()] == epochs[epoch]


def broken(sample):
    if sample["label"] % 5 == 0:
        raise KeyError("mine")
    return sample["label"]


@pytest.mark.parametrize("how", [{"threads": 0}, {"threads": 2}, {"processes": 1}])
def test_functions_that_fail_name_the_sample_and_are_skipped_where_that_is_asked(shards, how):
    with pytest.raises(KeyError) as raised:
        list(Loader(shards, 4, transform=broken, **how))
    assert re.search(r"shard-\d+\.tar, sample \d+ \(class", "".join(traceback.format_exception(raised.value)))
    loader = Loader(shards, 4, transform=broken, on_error="skip", **how)
    assert not any((batch % 5 == 0).any() for batch in loader)
    report = loader.report()
    assert report.bad_samples and all(re.match(r"shard-\d+\.tar, sample", one.name) for one in report.bad)
    assert all(one.why == "'mine'" for one in report.bad)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"ends": "truncate"}, "ends is 'truncate'; allowed: 'even', 'drop', 'pad'"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
        ({"batch_size": "4"}, "batch_size is '4'; it must be a whole number"),
        ({"batch_size": 0}, "of 1 or more"),
        ({"threads": 1.5}, "threads is 1.5"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"num_workers": 2}, "instead of num_workers= it has threads= or processes="),
        ({"drop_last": True}, 'instead of drop_last= it has ends="drop"'),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(wrong, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        Loader([1, 2, 3], **wrong)


def test_what_has_no_length_is_refused():
    with pytest.raises(UsageError, match="has no __len__"):
        Loader(iter([1, 2]), 2)


@pytest.mark.parametrize("make", [RandomResizedCrop, CenterCrop])
@pytest.mark.parametrize("size", [0, (224, 224), 1.5])
def test_sizes_of_crops_are_whole_numbers(make, size):
    with pytest.raises(UsageError, match="size is"):
        make(size)


@pytest.mark.parametrize("state", [None, {"consumed": -1}])
def test_states_that_are_damaged(state):
    loader = Loader([1, 2, 3], 2)
    with pytest.raises(UsageError):
        loader.load_state_dict(None if state is None else loader.state_dict() | state)


def test_what_frameworks_ask_of_a_loader_with_a_sampler_is_there():
    assert Loader([1, 2, 3], 2).batch_sampler is None  # Lightning asks, of each loader of an evaluation
