"""Train with autocast and a GradScaler: precision.py bf16|fp16"""

import sys

import torch
from _parts import loader, loss_of, network, tell_memory, to_cuda

model = network()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=sys.argv[1] == "fp16")
steps = 0
for _ in range(4):
    for batch in loader():
        inputs, target = to_cuda(batch)
        with torch.autocast("cuda", torch.bfloat16 if sys.argv[1] == "bf16" else torch.float16):
            loss = loss_of(model, inputs, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        steps += 1
del loss
print(steps, model[0][0].weight.dtype)
tell_memory()
