"""A causal language model of Hugging Face with its default `use_cache=True`, in a loop; then the cache is read."""

from __future__ import annotations

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.arange(32).reshape(4, 8) % 13
for _ in range(3):
    outputs = model(input_ids=tokens, labels=tokens)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{outputs.loss.item():.5f}")
model.eval()
with torch.no_grad():
    print(model(tokens).past_key_values.get_seq_length())
    print(model.generate(tokens[:, :2], max_new_tokens=3, do_sample=False, pad_token_id=0).tolist())
model.train()
if sys.argv[1:] == ["length"]:
    model(input_ids=tokens).past_key_values.get_seq_length()
if sys.argv[1:] == ["given"]:
    model(input_ids=tokens[:, :1], past_key_values=model(input_ids=tokens[:, :1]).past_key_values)
