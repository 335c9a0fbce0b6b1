"""Stores that fail for a while, addresses with secrets, and conversions from and to a store."""

from __future__ import annotations

import logging
import time

import fsspec
import pytest
from click.testing import CliRunner
from tests.data.making import converted, folder_of_pictures
from tests.data.remote import stores
from tests.data.remote.stores import always, serving
from tests.data.remote.test_loader import batches

from paceline.cli.data.convert import command
from paceline.core.errors import EnvironmentFault, PacelineError, UsageError
from paceline.data.convert.verify import verify
from paceline.data.reading.sharded import ShardedDataset
from paceline.data.remote.secrets import shown_url, without_secrets


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> ShardedDataset:
    return converted(tmp_path_factory.mktemp("data"), 60)


@pytest.fixture
def store(shards):
    with serving(shards.folder, "photos") as served:
        yield served


def for_a_while(seconds: float) -> stores.Fault:
    end = time.monotonic() + seconds

    def fault(answer: stores.Answer, name: str) -> bool:
        return time.monotonic() < end and stores.busy(answer, name)

    return fault


def test_an_outage_is_ridden_out_and_told_once(shards, store, caplog):
    caplog.set_level(logging.INFO, "paceline.data")
    remote = ShardedDataset(store.url, cache=False, wait_s=0.01)
    store.fault = for_a_while(2.0)
    assert batches(remote) == batches(shards)
    said = [record.getMessage() for record in caplog.records]
    assert remote.remote.counts.repeated > 10
    assert len([one for one in said if "the request is repeated for up to 5 min" in one]) == 1
    assert len([one for one in said if "answers again after" in one]) == 1


def test_an_outage_that_lasts_ends_with_its_time(store):
    remote = ShardedDataset(store.url, cache=False, wait_s=0.01, outage_s=0.5)
    store.fault = always(stores.busy, ".tar")
    begun = time.monotonic()
    with pytest.raises(PacelineError, match="503"):
        batches(remote)
    assert 0.4 < time.monotonic() - begun < 15


def test_a_signed_address_works_and_its_signature_is_not_shown(shards, store):
    asked: list[str] = []
    store.fault = lambda answer, name: bool(asked.append(answer.path))
    signed = f"{store.url}?X-Amz-Signature=5ecret&Expires=9"
    remote = ShardedDataset(signed, cache=False, tries=1)
    assert batches(remote) == batches(shards)
    assert all(path.endswith("?X-Amz-Signature=5ecret&Expires=9") for path in asked)
    assert remote.address == store.url
    store.fault = stores.refused
    with pytest.raises(PacelineError) as error:
        batches(remote)
    assert "5ecret" not in str(error.value) and "5ecret" not in repr(error.value.__cause__)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/a/b: 403", "https://***@host/a/b: 403"),
        ("GET https://h/a?sig=abc&x=1, message", "GET https://h/a?***, message"),
        ("url=URL('https://h/a?X-Amz-Credential=abc')", "url=URL('https://h/a?***')"),
        ("secret_access_key=abc and token: def", "secret_access_key=*** and token: ***"),
        (
            "s3://bucket/photos/shard-000001.tar, bytes 512 to 29,958",
            "s3://bucket/photos/shard-000001.tar, bytes 512 to 29,958",
        ),
    ],
)
def test_messages_have_no_secrets(text, shown):
    assert without_secrets(text) == shown


def test_an_address_is_shown_without_user_and_query():
    assert shown_url("https://user:pass@host/a?sig=abc") == "https://host/a"


@pytest.fixture
def memory(monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache" / "shards"))
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def run(*arguments: str) -> object:
    return CliRunner().invoke(command, [*arguments, "--processes", "1"], standalone_mode=False)


def test_a_conversion_from_a_store_and_to_one(tmp_path, memory):
    source = folder_of_pictures(tmp_path / "in", 20)
    memory.put(str(source), "/bucket/photos", recursive=True)
    done = run("memory://bucket/photos", "memory://bucket/shards")
    assert done.exception is None, done.output
    assert "20 samples in 1 shard" in done.output and "memory://bucket/shards" in done.output
    found = ShardedDataset("memory://bucket/shards", cache=False)
    assert verify(found, lambda done, whole: None).problems == ()
    assert list(found.contents.classes) == ["class0", "class1", "class2"]
    local = run(str(source), str(tmp_path / "shards"))
    assert local.exception is None
    assert ShardedDataset(tmp_path / "shards").contents.shards == found.contents.shards
    assert not list((tmp_path / "cache" / "conversions").iterdir())
    again = run(str(source), "memory://bucket/shards")
    assert isinstance(again.exception, UsageError) and "holds a data set" in str(again.exception)
    empty = run("memory://bucket/nothing", str(tmp_path / "other"))
    assert isinstance(empty.exception, UsageError) and "there is nothing at memory://bucket/nothing" in str(
        empty.exception
    )


def test_a_result_that_could_not_be_sent_is_sent_by_the_next_try(tmp_path, memory, monkeypatch):
    source = folder_of_pictures(tmp_path / "in", 8)
    put = type(memory).put_file

    def failing(self, path: str, *rest: object, **more: object) -> None:
        if path.endswith("dataset.json"):
            raise OSError("the store is gone")
        put(self, path, *rest, **more)

    monkeypatch.setattr(type(memory), "put_file", failing)
    done = run(str(source), "memory://bucket/shards")
    assert isinstance(done.exception, EnvironmentFault) and "sent when the command is repeated" in str(done.exception)
    monkeypatch.setattr(type(memory), "put_file", put)
    assert run(str(source), "memory://bucket/shards").exception is None
    assert verify(ShardedDataset("memory://bucket/shards", cache=False), lambda done, whole: None).samples == 8
