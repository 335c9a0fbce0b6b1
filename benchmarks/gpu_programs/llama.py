"""Hugging Face's Llama, made from its configuration, on random tokens; prints the step time and the memory."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser()
for name, usual in (("width", 1024), ("depth", 12), ("length", 1024), ("batch", 8), ("steps", 20)):
    parser.add_argument(f"--{name}", type=int, default=usual)
parser.add_argument("--weights", choices=("fp32", "bf16"), default="fp32", help="fp32 with autocast, or bf16 alone")
parser.add_argument("--device", default="cuda")
given = parser.parse_args()

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=given.width,
    intermediate_size=given.width * 11 // 4,
    num_hidden_layers=given.depth,
    num_attention_heads=given.width // 64,
    max_position_embeddings=given.length,
    use_cache=False,
)
model = LlamaForCausalLM(config)
model = (model.bfloat16() if given.weights == "bf16" else model).to(given.device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(0, 32000, (given.batch, given.length), device=given.device)
walls = []
for _ in range(given.steps):
    begun = time.perf_counter()
    with torch.autocast(given.device, torch.bfloat16, enabled=given.weights == "fp32"):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if given.device == "cuda":
        torch.cuda.synchronize()
    walls.append(time.perf_counter() - begun)
told = {"step_s": statistics.median(walls[len(walls) // 3 :]), "steps": given.steps, "loss": loss.item()}
told["parameters"] = sum(parameter.numel() for parameter in model.parameters())
if given.device == "cuda":
    smi = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    used = subprocess.run(smi, capture_output=True, text=True, check=False).stdout.split()
    told["smi_bytes"] = int(used[0]) * 2**20 if used and used[0].isdigit() else None
    told["allocated_bytes"] = torch.cuda.max_memory_allocated()
    told["reserved_bytes"] = torch.cuda.max_memory_reserved()
print(json.dumps(told))
