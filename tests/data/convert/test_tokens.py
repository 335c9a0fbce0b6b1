"""Text as tokens: every window of every shard, whatever it is asked by, and text that comes back."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
import torch

from paceline.cli import main
from paceline.core.errors import UsageError
from paceline.data.convert.token_shards import verify_tokens, write_tokens
from paceline.data.format.index import DamagedData
from paceline.data.format.tokens import ByteTokenizer, Text
from paceline.data.loader.loader import Loader
from paceline.data.reading.token_dataset import TokenDataset
from paceline.data.sources.text import TextOptions, documents, tokenizer_of

TEXTS = [f"document {number}: " + "a few words, é and 字 " * (number + 1) for number in range(40)]


@pytest.fixture
def folder(tmp_path):
    batches = ([Text(one) for one in TEXTS[begin : begin + 5]] for begin in range(0, 40, 5))
    write_tokens(tmp_path / "tokens", batches, ByteTokenizer(), shard_tokens=3000)
    return tmp_path / "tokens"


def shards_of(folder) -> list[np.ndarray]:
    return [np.load(path) for path in sorted(folder.glob("*.npy"))]


def test_all_text_comes_back(folder):
    tokens = np.concatenate(shards_of(folder))
    assert tokens.dtype == np.uint16
    found = [
        bytes(part[part < 256].astype(np.uint8)).decode()
        for part in np.split(tokens, np.flatnonzero(tokens == 256) + 1)
    ]
    assert found == [*TEXTS, ""]


def test_samples_are_windows_that_share_one_token(folder):
    dataset = TokenDataset(folder, 100)
    expected = [shard[begin : begin + 101] for shard in shards_of(folder) for begin in range(0, len(shard) - 100, 100)]
    assert len(dataset.contents.shards) > 2
    assert len(dataset) == len(expected)
    assert all(np.array_equal(dataset[number], row) for number, row in enumerate(expected))
    mixed = np.random.default_rng(0).permutation(len(dataset))
    batch = dataset.batch(mixed)
    assert batch.dtype == np.int64
    assert np.array_equal(batch, np.stack(expected)[mixed])
    assert TokenDataset(folder, 100, dtype=None).batch(mixed).dtype == np.uint16


def test_a_loader_gives_all_of_them(folder):
    dataset = TokenDataset(folder, 64)
    seen = torch.cat(list(Loader(dataset, 7, True, threads=2)))
    assert seen.shape == (len(dataset), 65)
    assert sorted(map(tuple, seen.tolist())) == sorted(
        tuple(dataset[number].tolist()) for number in range(len(dataset))
    )


def test_the_command_line(tmp_path):
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    convert = [sys.executable, "-m", "paceline", "data", "convert", "corpus.jsonl", "tokens"]
    done = subprocess.run(convert, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "--tokenizer bytes" in done.stderr) == (2, True)
    done = subprocess.run([*convert, "--tokenizer", "bytes"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of 40 documents, ids below 257, uint16, in 1 file" in done.stdout
    assert len(TokenDataset(tmp_path / "tokens", 10)) > 0
    data = [sys.executable, "-m", "paceline", "data"]
    done = subprocess.run([*data, "inspect", "tokens"], cwd=tmp_path, capture_output=True, text=True)
    assert "tokens of 40 documents" in done.stdout
    bench = [*data, "bench", "tokens", "--length", "16", "--rounds", "2", "--json", "bench.json"]
    done = subprocess.run(bench, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["decode_limit_cpu_ms"] is None
    assert [stage["name"] for stage in found["stages"]] == ["read"]


def test_a_tokenizer_of_hugging_face(tmp_path):
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<|endoftext|>": 2, "?": 3}, unk_token="?"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / "tokenizer.json"))
    write_tokens(
        tmp_path / "tokens", iter([[Text("a b"), Text("b c")]]), tokenizer_of(str(tmp_path / "tokenizer.json"))
    )
    assert np.concatenate(shards_of(tmp_path / "tokens")).tolist() == [0, 1, 2, 1, 3, 2]


def test_what_is_wrong(folder, tmp_path):
    with pytest.raises(UsageError, match="too few for one sample of"):
        TokenDataset(folder, 10**6)
    with pytest.raises(UsageError, match="give 'bytes', or the path of"):
        tokenizer_of("gpt2")
    with pytest.raises(UsageError, match="holds a data set"):
        write_tokens(folder, iter([[Text("a")]]), ByteTokenizer())
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"words": "b"}\n')
    with pytest.raises(UsageError, match="line 2: it is not an object with a field"):
        list(documents(tmp_path / "bad.jsonl"))
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        list(documents(tmp_path / "latin.txt"))
    path = sorted(folder.glob("*.npy"))[1]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DamagedData, match=path.name):
        TokenDataset(folder, 100).batch(np.array([0]))


def many(count: int):
    yield from ([Text(f"document {number} " * 50)] for number in range(count))


def cut_short(count: int):
    yield from many(count)
    raise KeyboardInterrupt


def test_an_interrupted_conversion_of_text_goes_on_where_it_was(tmp_path):
    write_tokens(tmp_path / "whole", many(12), ByteTokenizer(), shard_tokens=1500)
    with pytest.raises(KeyboardInterrupt):
        write_tokens(tmp_path / "tokens", cut_short(7), ByteTokenizer(), shard_tokens=1500, mark="a")
    with pytest.raises(UsageError, match="an unfinished conversion"):
        write_tokens(tmp_path / "tokens", many(12), ByteTokenizer(), shard_tokens=1500, mark="b")

    class Counting(ByteTokenizer):
        made = 0

        def ids(self, texts):
            self.made += len(texts)
            return super().ids(texts)

    own = Counting()
    (tmp_path / "tokens" / ".tokens-000003.npy.1.part").write_bytes(b"of a process that was killed")
    write_tokens(tmp_path / "tokens", many(12), own, shard_tokens=1500, mark="a")
    assert 0 < own.made < 12
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "tokens" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "tokens").iterdir())) == len(list((tmp_path / "whole").iterdir()))


@pytest.mark.parametrize("harm", ["flipped", "cut", "gone"])
def test_a_file_of_tokens_that_is_not_what_was_written_is_made_again(tmp_path, harm):
    write_tokens(tmp_path / "whole", many(12), ByteTokenizer(), shard_tokens=1500)
    with pytest.raises(KeyboardInterrupt):
        write_tokens(tmp_path / "tokens", cut_short(9), ByteTokenizer(), shard_tokens=1500, mark="a")
    path = tmp_path / "tokens" / "tokens-000001.npy"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.unlink() if harm == "gone" else path.write_bytes(data if harm == "flipped" else data[:-100])
    write_tokens(tmp_path / "tokens", many(12), ByteTokenizer(), shard_tokens=1500, mark="a")
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "tokens" / path.name).read_bytes() == path.read_bytes()


def test_two_conversions_of_text_do_not_meet(tmp_path, monkeypatch):
    from paceline.data.convert.resuming import alone_in

    monkeypatch.setattr("paceline.data.convert.resuming.WAIT_S", 0.1)
    mark = f"a {1 << 20}"
    with alone_in(tmp_path / "tokens", mark), pytest.raises(UsageError, match="another process converts into"):
        write_tokens(tmp_path / "tokens", many(3), ByteTokenizer(), 1 << 20, mark="a")


def test_text_that_changes_while_it_is_converted_is_refused(tmp_path):
    marks = iter("ab")
    with pytest.raises(UsageError, match="the text changed while it was converted"):
        write_tokens(tmp_path / "tokens", many(3), ByteTokenizer(), mark=lambda: next(marks))
    assert not (tmp_path / "tokens" / "tokens.json").exists()


def text_of(folder) -> bytes:
    tokens = np.concatenate(shards_of(folder))
    return bytes(tokens[tokens < 256].astype(np.uint8))


def test_a_long_document_comes_in_pieces_and_stays_one(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.data.sources.text._PIECE_BYTES", 1 << 12)
    lines = [f"line {number}: é and 字\n" + "\n \n" * (number % 3) for number in range(2000)]
    (tmp_path / "long.txt").write_text("".join(lines), encoding="utf-8")
    pieces = [text for some in documents(tmp_path / "long.txt", options=TextOptions(cuts=True)) for text in some]
    assert len(pieces) > 2
    assert [one.ends for one in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(not one.text[0].isspace() and before.text.endswith("\n") for before, one in zip(pieces, pieces[1:]))
    made = write_tokens(tmp_path / "tokens", iter([pieces]), ByteTokenizer())
    assert made.documents == 1
    assert text_of(tmp_path / "tokens").decode() == "".join(lines)


def test_pieces_have_the_tokens_of_their_document_or_it_is_not_cut(tmp_path):
    text = "".join(f"A line, number {number}.\n" for number in range(200))

    def own(pre_tokenizer) -> object:
        made = tokenizers.Tokenizer(tokenizers.models.BPE())
        made.pre_tokenizer = pre_tokenizer
        trainer = tokenizers.trainers.BpeTrainer(special_tokens=["<|endoftext|>"], vocab_size=400, show_progress=False)
        made.train_from_iterator([text], trainer)
        made.save(str(tmp_path / "tokenizer.json"))
        return tokenizer_of(str(tmp_path / "tokenizer.json"))

    assert own(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)).cuts
    assert not own(tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")).cuts


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "txt.gz"])
def test_text_of_every_format(tmp_path, kind):
    import gzip

    path = tmp_path / f"corpus.{kind}"
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"body": TEXTS, "n": list(range(40))}), path)
    else:
        whole = "".join(TEXTS) if kind == "txt.gz" else "".join(json.dumps({"body": one}) + "\n" for one in TEXTS)
        (gzip.open if kind.endswith("gz") else open)(path, "wb").write(whole.encode())
    found = [text.text for some in documents(path, options=TextOptions(text_field="body")) for text in some]
    assert found == (["".join(TEXTS)] if kind == "txt.gz" else TEXTS)
    if kind != "txt.gz":
        with pytest.raises(UsageError, match=r"text-field|a field \"text\""):
            list(documents(path))


def test_text_that_cannot_be_read_is_skipped_and_told(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "one"}\n{"words": 2}\nno\n{"text": 3}\n{"text": "two"}\n')
    (tmp_path / "in" / "b.txt").write_bytes(b"caf\xe9")
    convert = [sys.executable, "-m", "paceline", "data", "convert", str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run([*convert, "--tokenizer", "bytes", "--on-error", "skip"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 documents" in done.stdout and "4 skipped" in done.stdout
    assert all(said in done.stderr for said in ("a.jsonl, line 2", "line 3", "line 4", "b.txt is not UTF-8"))
    assert text_of(tmp_path / "out") == b"onetwo"
    done = subprocess.run([*convert, "--tokenizer", "bytes", "--seed", "3"], capture_output=True, text=True)
    assert done.returncode == 2 and "--seed has no effect on text" in done.stderr


def test_damage_of_tokens_is_found_and_named(folder):
    assert not verify_tokens(folder, lambda done, whole: None).problems
    first, second = sorted(folder.glob("*.npy"))[:2]
    harmed = bytearray(first.read_bytes())
    harmed[200] ^= 1
    first.write_bytes(harmed)
    second.unlink()
    found = verify_tokens(folder, lambda done, whole: None)
    assert len(found.problems) == 2
    assert "is damaged" in found.problems[0] and "cannot be read" in found.problems[1]
    verify = [sys.executable, "-m", "paceline", "data", "verify", str(folder)]
    done = subprocess.run(verify, capture_output=True, text=True)
    assert done.returncode == 1 and first.name in done.stderr


def test_who_takes_tokens_for_pictures_is_told(folder):
    with pytest.raises(UsageError, match=r"TokenDataset\("):
        Loader(folder, 4)


@pytest.mark.parametrize("setting", ["truncation", "padding", "both"])
def test_a_tokenizer_cuts_no_document_and_fills_none_up(tmp_path, setting):
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "</s>": 2, "?": 3}, unk_token="?"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if setting != "padding":
        own.enable_truncation(2)
    if setting != "truncation":
        own.enable_padding(length=5, pad_id=3, pad_token="?")
    own.save(str(tmp_path / "tokenizer.json"))
    texts = iter([[Text("a b b a"), Text("b")]])
    write_tokens(tmp_path / "tokens", texts, tokenizer_of(str(tmp_path / "tokenizer.json")))
    assert np.concatenate(shards_of(tmp_path / "tokens")).tolist() == [0, 1, 1, 0, 2, 1, 2]


def test_files_of_several_splits_are_told(tmp_path):
    (tmp_path / "in").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "in" / f"{split}.jsonl").write_text(json.dumps({"text": split}) + "\n")
    convert = [sys.executable, "-m", "paceline", "data", "convert", "--tokenizer", "bytes"]
    done = subprocess.run([*convert, "in", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "files of the splits train, valid become one data set" in done.stderr
    done = subprocess.run([*convert, "in/train.jsonl", "one"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "splits" not in done.stderr


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "float16", "nope"])
def test_a_type_that_cannot_hold_all_tokens_is_refused(folder, dtype):
    with pytest.raises(UsageError, match="int64"):
        TokenDataset(folder, 100, dtype=dtype)


def test_a_token_outside_of_the_vocabulary_is_damage(folder):
    path = sorted(folder.glob("*.npy"))[1]
    tokens = np.load(path, mmap_mode="r+")
    tokens[50] = 32_623
    tokens.flush()
    with pytest.raises(DamagedData, match="it has the token 32623, and the vocabulary has 257; .*verify"):
        list(Loader(TokenDataset(folder, 100), 4))


def test_tokens_that_a_tokenizer_adds_itself_are_named(tmp_path, capfd):
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[CLS]": 0, "[SEP]": 1, "a": 2, "[UNK]": 3}, "[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    own.save(str(tmp_path / "plain.json"))
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    own.save(str(tmp_path / "template.json"))
    (tmp_path / "text.txt").write_text("a a")
    for name in ("plain", "template"):
        options = ["--tokenizer", str(tmp_path / f"{name}.json")]
        with pytest.raises(SystemExit, match="^0$"):
            main(["data", "convert", str(tmp_path / "text.txt"), str(tmp_path / name), *options])
        said = capfd.readouterr().err
        left_out = "left out: [CLS] and [SEP], which template.json would add to each text; each document ends"
        assert (left_out in said) == (name == "template")
        assert [np.load(file).tolist() for file in (tmp_path / name).glob("*.npy")] == [[2, 2, 1]]
