"""A store that speaks S3, through s3fs: what it says of itself is understood."""

from __future__ import annotations

import pytest
from tests.data.making import converted
from tests.data.remote import stores
from tests.data.remote.stores import Served, always, first, serving
from tests.data.remote.test_loader import SOON, batches

from paceline.core.errors import EnvironmentFault, UsageError
from paceline.data.format.index import DamagedData
from paceline.data.reading.sharded import ShardedDataset

URL = "s3://bucket/photos"


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 60)


@pytest.fixture
def store(shards):
    with serving(shards.folder) as served:
        yield served


def opened(store: Served, **settings: object) -> ShardedDataset:
    options = {"key": "key", "secret": "secret", "endpoint_url": store.url.rstrip("/")}
    return ShardedDataset(URL, storage_options=options, **{"cache": False, **SOON, **settings})


def test_batches_are_those_of_a_folder(shards, store, tmp_path):
    store.fault = first(2, stores.busy)
    for _ in range(2):
        assert batches(opened(store, cache=tmp_path)) == batches(shards)
    assert sum(store.asked[shard.file] for shard in shards.contents.shards) == 2 + len(shards.contents.shards)


def test_it_can_be_copied_to_another_process(shards, store):
    import pickle

    again = pickle.loads(pickle.dumps(opened(store)))
    assert batches(again) == batches(shards)


@pytest.mark.parametrize(
    "fault, said", [(stores.refused, "give credentials in storage_options="), (stores.absent, "no such object")]
)
def test_what_cannot_get_better_is_not_tried_again(store, fault, said):
    store.fault = always(fault, "shard-000002.tar")
    with pytest.raises(DamagedData, match=f"shard-000002.tar, sample .* s3://bucket/photos/shard-000002.tar, .*{said}"):
        batches(opened(store))
    assert store.asked["shard-000002.tar"] == 1


@pytest.mark.parametrize("fault, error", [(stores.refused, EnvironmentFault), (stores.absent, UsageError)])
def test_no_data_set(store, fault, error):
    store.fault = always(fault, "dataset.json")
    with pytest.raises(error, match="s3://bucket/photos"):
        opened(store)
    assert store.asked["dataset.json"] == 1


def test_a_shard_that_ends_early(tmp_path):
    """What is there is used; what is not is named, also where nothing of a block is."""
    local = converted(tmp_path, 60)
    for number, left in ((1, 2), (2, 512)):
        path = local.folder / local.contents.shards[number].file
        path.write_bytes(path.read_bytes()[: path.stat().st_size // left])
    with serving(local.folder) as store, pytest.raises(DamagedData, match="is truncated"):
        batches(opened(store))
