"""Hugging Face's models trained on the ranks of a layout, or by hand on one process; as JSON.

python hugging_face_ranks.py RESULT.json LAYOUT SCHEDULE MODEL ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from paceline.train import Engine

SMALL = {"vocab_size": 62, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "use_cache": True}
WIDE = {**SMALL, "intermediate_size": 32, "num_key_value_heads": 1, "tie_word_embeddings": False}
UNDROPPED = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0.0)
ENCODER = {**SMALL, "intermediate_size": 32, **UNDROPPED}
NAMES = {
    "LlamaForCausalLM": WIDE,
    "Qwen3ForCausalLM": {**WIDE, "head_dim": 8},
    "MistralForCausalLM": {**WIDE, "sliding_window": 4},
    "GPT2LMHeadModel": {
        "vocab_size": 62,
        "n_embd": 16,
        "n_layer": 4,
        "n_head": 2,
        "tie_word_embeddings": False,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
    "GPTNeoXForCausalLM": {**SMALL, "intermediate_size": 32, "tie_word_embeddings": False},
    "Gemma3ForCausalLM": {**WIDE, "head_dim": 8, "sliding_window": 4},
    "LlamaForSequenceClassification": {**WIDE, "num_labels": 3, "pad_token_id": 0},
    **dict.fromkeys(("BertForMaskedLM", "RobertaForMaskedLM", "ElectraForMaskedLM"), ENCODER),
    "DistilBertForMaskedLM": {"vocab_size": 62, "dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 32, **UNDROPPED},
    "T5ForConditionalGeneration": {"vocab_size": 62, "d_model": 16, "num_layers": 2, "d_kv": 8, "d_ff": 32},
    "LlamaOfTwo": {**WIDE, "num_key_value_heads": 2},
    "TiedLlama": {**WIDE, "tie_word_embeddings": True},
}
PICTURES = {**ENCODER, "num_channels": 1, "image_size": 8, "patch_size": 4, "num_labels": 3, "drop_path_rate": 0.0}
NAMES |= dict.fromkeys((f"{kind}ForImageClassification" for kind in ("ViT", "DeiT", "Beit", "Dinov2")), PICTURES)
NAMES["ViTMAEForPreTraining"] = PICTURES
UNTIED = {**SMALL, "tie_word_embeddings": False}
NAMES |= dict.fromkeys(("BloomForCausalLM", "FalconForCausalLM"), UNTIED)
NAMES["OPTForCausalLM"] = {**UNTIED, "ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0}
NAMES["GPTNeoForCausalLM"] = {
    "vocab_size": 62,
    "hidden_size": 16,
    "num_layers": 4,
    "num_heads": 2,
    "attention_types": [[["global", "local"], 2]],
    "tie_word_embeddings": False,
    **dict.fromkeys(("resid_dropout", "embed_dropout", "attention_dropout"), 0.0),
}
NAMES["DebertaV2ForMaskedLM"] = ENCODER
NAMES["ConvNextForImageClassification"] = {"num_channels": 1, "hidden_sizes": [4, 8], "depths": [1, 1], "num_stages": 2}
NAMES["TiedGPT2"] = {**NAMES["GPT2LMHeadModel"], "tie_word_embeddings": True}
KINDS = {"TiedLlama": "LlamaForCausalLM", "LlamaOfTwo": "LlamaForCausalLM", "TiedGPT2": "GPT2LMHeadModel"}
STEPS, BATCH, LENGTH = 3, 8, 10


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, KINDS.get(name, name))
    model = kind(kind.config_class(**NAMES[name]))
    return model.train()


def batches(name: str) -> list[tuple[Any, Any]]:
    drawn = torch.Generator().manual_seed(1)
    found = []
    for _ in range(STEPS):
        ids = torch.randint(1, 62, (BATCH, LENGTH), generator=drawn)
        mask = (torch.arange(LENGTH) < torch.randint(4, LENGTH + 1, (BATCH, 1), generator=drawn)).long()
        target = ids.roll(-1, 1) if "Classification" not in name else ids[:, 0] % 3
        inputs = {"input_ids": ids * mask, "attention_mask": mask}
        if "num_channels" in NAMES[name]:
            inputs = {"pixel_values": torch.rand(BATCH, 1, 8, 8, generator=drawn)}
        found.append((inputs, target))
    return found


def loss_of(output: Any, target: Any) -> Any:
    if "loss" in output:
        return output.loss
    return cross_entropy(output.logits.flatten(0, -2), target.flatten())


def by_hand(name: str) -> dict[str, Any]:
    model = model_of(name)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for inputs, target in batches(name):
        loss = loss_of(model(**inputs), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        inputs, target = batches(name)[0]
        evaluated = loss_of(model(**inputs), target).item()
    return {"losses": losses, "evaluated": evaluated, "weights": sums(model.state_dict())}


def sums(state: dict[str, Any]) -> dict[str, float]:
    return {name: value.double().abs().sum().item() for name, value in state.items()}


def by_engine(name: str, layout: str, schedule: str, folder: Path) -> dict[str, Any]:
    recipe = {"layout": layout, "memory": {"micro_batches": 4}, "pipeline": {"schedule": schedule}}
    with Engine(recipe) as engine:
        model = model_of(name)
        engine.setup(model, lambda held: torch.optim.AdamW(held.parameters(), lr=1e-2), loss=loss_of)
        losses = []
        rows = [({key: value[i] for key, value in x.items()}, y[i]) for x, y in batches(name) for i in range(BATCH)]
        for inputs, target in engine.loader(DataLoader(rows, BATCH)):
            engine.train_batch(inputs, target)
            losses.append(float(engine.loss()))
            engine.step()
        engine.export(folder / f"{name}.safetensors")
        engine.save(folder / name)
    with Engine(recipe) as engine:  # a second engine in this process goes on with the checkpoint
        engine.setup(model_of(name), lambda held: torch.optim.AdamW(held.parameters(), lr=1e-2), loss=loss_of)
        engine.load(folder / name)
        evaluated = engine.evaluate(DataLoader(rows[:BATCH], BATCH))["loss"]
    from safetensors.torch import load_file

    weights = sums(load_file(folder / f"{name}.safetensors"))
    return {"losses": losses, "evaluated": float(evaluated), "weights": weights}


def main(result: Path, layout: str, schedule: str, names: list[str]) -> None:
    found = {}
    for name in names:
        try:
            found[name] = by_engine(name, layout, schedule, result.parent) if layout != "none" else by_hand(name)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    result.write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
