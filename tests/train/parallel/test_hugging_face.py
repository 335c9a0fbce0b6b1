"""Hugging Face's models on pipeline stages train as on one process; others are refused with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.launching import environment, on_ranks
from tests.train.parallel.hugging_face_ranks import model_of

from paceline.core.errors import UsageError
from paceline.train.parallel import hugging_face
from paceline.train.parallel.pp import Pipeline, joined, stages_of

PROGRAM = Path(__file__).with_name("hugging_face_ranks.py")
MODELS = ["LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM"]
MODELS += ["GPTNeoXForCausalLM", "LlamaOfTwo", "TiedLlama", "TiedGPT2"]
MODELS += ["BertForMaskedLM", "RobertaForMaskedLM", "ElectraForMaskedLM", "DistilBertForMaskedLM"]
MODELS += ["BloomForCausalLM", "FalconForCausalLM", "OPTForCausalLM", "GPTNeoForCausalLM", "DebertaV2ForMaskedLM"]
MODELS += [f"{kind}ForImageClassification" for kind in ("ViT", "DeiT", "Beit", "Dinov2")]
SPLIT = {"pp=2": ("interleaved", MODELS), "dp=2": ("1f1b", MODELS[:1])}
SPLIT |= {
    "shard=2,pp=2": ("1f1b", [*MODELS[:4], "TiedGPT2", "BertForMaskedLM", MODELS[-4]]),
    "pp=2,tp=2": ("1f1b", ["LlamaOfTwo"]),
}
REFUSED = {
    "T5ForConditionalGeneration": "is neither an nn.Sequential nor a model of Hugging Face with one list of layers",
    "ConvNextForImageClassification": "is neither an nn.Sequential nor a model of Hugging Face with one list of layers",
    "LlamaForSequenceClassification": "computes different values on 2 ranks than on one",
}


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    result = tmp_path_factory.mktemp("one") / "result.json"
    line = [sys.executable, PROGRAM, result, "none", "-", *MODELS]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(result.read_text())


@pytest.mark.parametrize("layout", SPLIT)
def test_losses_evaluation_and_weights_are_those_of_one_process(one, layout, tmp_path):
    schedule, models = SPLIT[layout]
    done = on_ranks(4 if "," in layout else 2, PROGRAM, tmp_path / "result.json", layout, schedule, *models)
    found = json.loads((tmp_path / "result.json").read_text())
    assert done.returncode == 0, done.stderr
    for name in models:
        assert "error" not in found[name], found[name]
        assert found[name]["losses"] == pytest.approx(one[name]["losses"], rel=1e-5)
        assert found[name]["evaluated"] == pytest.approx(one[name]["evaluated"], rel=1e-5)
        # The bias of keys does not affect the loss; its gradient is a rounding error.
        assert found[name]["weights"] == pytest.approx(one[name]["weights"], rel=1e-4, abs=1e-4)


def test_what_has_no_stages_is_refused(tmp_path):
    on_ranks(2, PROGRAM, tmp_path / "result.json", "pp=2", "1f1b", *REFUSED)
    found = json.loads((tmp_path / "result.json").read_text())
    for name, why in REFUSED.items():
        assert why in found[name]["error"]


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_stages_keep_the_names_and_each_weight_once(name):
    model, pipeline = model_of(name), Pipeline(schedule="interleaved")
    stages = [stages_of(model, rank, 2, pipeline)[0] for rank in range(2)]
    held = [joined([stage for _, stage in own]) for own in stages]
    names = [[name for name, _ in each.named_parameters()] for each in held]
    assert sorted(names[0] + names[1]) == sorted(name for name, _ in model.named_parameters())
    of_model = dict(model.named_parameters())
    assert all(value is of_model[name] for each in held for name, value in each.named_parameters())


def test_the_stages_one_after_the_other_are_the_model():
    model = model_of("Qwen3ForCausalLM").eval()
    stages = dict(stages_of(model, 0, 2, Pipeline())[0] + stages_of(model, 1, 2, Pipeline())[0])
    inputs = {"attention_mask": (torch.arange(7) < torch.tensor([[7], [4]])).long()}
    ids = torch.randint(1, 61, (2, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(input_ids=ids, **inputs)
        output = hugging_face.restored(stages[1], stages[1](stages[0](ids, **inputs), **inputs))
    torch.testing.assert_close(output.logits, whole.logits)
    assert type(output) is type(whole)


def test_a_vision_model_that_needs_more_than_activations_is_refused():
    """The decoder of a masked autoencoder needs the mask of the patches, which only the first stage has."""
    model = model_of("ViTMAEForPreTraining").eval()
    stages = dict(stages_of(model, 0, 2, Pipeline())[0] + stages_of(model, 1, 2, Pipeline())[0])
    with pytest.raises(UsageError, match="ViTMAEForPreTraining cannot be split into stages"):
        stages[1](stages[0](torch.rand(2, 1, 8, 8)))


def test_inputs_without_token_ids_and_pixels_are_named():
    with pytest.raises(UsageError, match="the inputs are inputs_embeds, attention_mask; .* need input_ids or pixel"):
        hugging_face.divided({"inputs_embeds": 1, "attention_mask": 2})
