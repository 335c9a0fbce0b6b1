"""Convert and move tensors without a copy to the device: casts.py"""

import torch
from _parts import loss_of, network, tell_memory

model = network()
optimizer = torch.optim.AdamW(model.parameters())
inputs, target = torch.zeros(8, 64, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
on_host = torch.ones(1 << 16)
for _ in range(200):
    for _ in range(8):
        on_host.to(torch.float64).to(dtype=torch.float16).to("cpu", torch.float32).to(on_host)
    inputs.to("cuda").to(torch.float64).to(inputs)
    loss_of(model, inputs, target).backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
del inputs, target
tell_memory()
