"""Datasets in which a sample depends on previously read samples. Each case prints the losses of a training.

python remembers.py NAME ...
"""

from __future__ import annotations

import functools
import io
import os
import random
import sqlite3
import sys
from collections import Counter, OrderedDict, deque

import numpy
import torch
from torch.utils.data import Dataset

try:
    from tests.train.unmodified.ordinary import X, Y, fit_to
except ModuleNotFoundError:  # started as a program
    from ordinary import X, Y, fit_to

CASES = {}


class Numbers:
    calls = 0


ALL = []


@functools.lru_cache(maxsize=4)
def cached(place):
    ALL.append(place)
    return len(ALL)


def counted():
    counted.calls = getattr(counted, "calls", 0) + 1
    return counted.calls


class Remembers(Dataset):
    """A dataset of which `change` modifies each sample by a state."""

    def __init__(self, change, **attributes):
        self.change = change
        vars(self).update(attributes)

    def __len__(self):
        return 48

    def __getitem__(self, place):
        return self.change(self, X[place], place), int(Y[place])


def scaled(row, number):
    return row * (1 + number % 10 / 10)


def last_number(data, row, place):
    before, data.last = data.last, place
    return scaled(row, 0 if before is None else before - place)


def last_sample(data, row, place):
    before, data.last = data.last, row
    return row if before is None else 0.7 * row + 0.3 * before


def last_pair(data, row, place):
    before, data.last = data.last, (row, place)
    return row if before is None else 0.7 * row + 0.3 * before[0]


def new_attribute(data, row, place):
    data.calls = getattr(data, "calls", 0) + 1
    return scaled(row, data.calls)


def running_mean(data, row, place):
    if not hasattr(data, "mean"):
        data.mean = row.clone()
    data.mean = 0.9 * data.mean + 0.1 * row
    return row - data.mean


def rotated(data, row, place):
    data.ring.rotate(1)
    return scaled(row, data.ring[0])


def in_a_set(data, row, place):
    data.seen.add(place % 11)
    return scaled(row, len(data.seen))


def in_a_counter(data, row, place):
    data.counts[place % 3] += 1
    return scaled(row, data.counts[place % 3])


def in_a_dict(data, row, place):
    data.places[place % 3] = place
    return scaled(row, sum(data.places.values()))


def in_a_new_list(data, row, place):
    data.rows = [*data.rows, row][-5:]
    return row + 0.3 * data.rows[0]


def in_a_list(data, row, place):
    data.rows.append(row)
    if len(data.rows) > 4:
        data.rows.pop(0)
    return row + 0.3 * data.rows[0]


def in_a_deque(data, row, place):
    data.rows.append(row)
    return row + 0.3 * data.rows[0]


def in_a_long_list(data, row, place):
    data.order.append(data.order.pop(0))
    return scaled(row, data.order[0])


def by_attribute_of_a_function(data, row, place):
    return scaled(row, counted())


def by_a_class(data, row, place):
    Numbers.calls += 1
    return scaled(row, Numbers.calls)


def by_the_environment(data, row, place):
    os.environ["READ_SAMPLES"] = str(int(os.environ.get("READ_SAMPLES", "0")) + 1)
    return scaled(row, int(os.environ["READ_SAMPLES"]))


def by_a_cached_function(data, row, place):
    return scaled(row, cached(place % 12))


def by_a_file_in_memory(data, row, place):
    return scaled(row, data.bytes.read(1)[0])


def in_an_image_cache(data, row, place):
    """Cache samples; a cached sample equals a newly read sample."""
    if place not in data.cache:
        data.cache[place] = row * 2
    data.cache.move_to_end(place)
    if len(data.cache) > 20:
        data.cache.popitem(last=False)
    return data.cache[place]


def in_a_database(data, row, place):
    """Store the index of the last sample in a database, where Paceline cannot find it."""
    if data.base is None:
        data.base = sqlite3.connect(":memory:")
        data.base.execute("create table last (place)")
        data.base.execute("insert into last values (0)")
    ((before,),) = data.base.execute("select place from last")
    data.base.execute("update last set place = ?", (place,))
    return scaled(row, before)


def noisy(data, row, place):
    """Add noise without a seed, which differs in each run, also on one process."""
    return row + 1e-6 * torch.from_numpy(numpy.random.default_rng().random(12)).float()


WAYS = {  # function -> returns the initial attributes of the dataset
    last_number: lambda: {"last": None},
    last_sample: lambda: {"last": None},
    last_pair: lambda: {"last": None},
    new_attribute: dict,
    running_mean: dict,
    rotated: lambda: {"ring": deque(range(5))},
    in_a_set: lambda: {"seen": set()},
    in_a_counter: lambda: {"counts": Counter()},
    in_a_dict: lambda: {"places": {}},
    in_a_new_list: lambda: {"rows": []},
    in_a_list: lambda: {"rows": []},
    in_a_deque: lambda: {"rows": deque(maxlen=4)},
    in_a_long_list: lambda: {"order": random.Random(0).sample(range(500), 500)},
    by_attribute_of_a_function: dict,
    by_a_class: dict,
    by_the_environment: dict,
    by_a_cached_function: dict,
    by_a_file_in_memory: lambda: {"bytes": io.BytesIO(bytes(range(200)) * 10)},
    in_an_image_cache: lambda: {"cache": OrderedDict()},
}


def trained(way, attributes, workers):
    return fit_to(Remembers(way, **attributes()), shuffle=True, num_workers=workers)


for way, attributes in WAYS.items():
    for workers in (0, 2):
        name = f"{way.__name__}{'_with_workers' * (workers > 0)}"
        CASES[name] = functools.partial(trained, way, attributes, workers)


HIDDEN = {"in_a_database": (in_a_database, lambda: {"base": None}), "noisy": (noisy, dict)}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(sys.argv[1], *trained(*HIDDEN[sys.argv[1]], int(sys.argv[2])))
    for name in CASES if len(sys.argv) == 1 else ():
        print(name, *CASES[name](), flush=True)
