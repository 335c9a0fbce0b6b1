"""Two-layer network with the update rule written out."""

import torch

torch.manual_seed(0)
torch.set_num_threads(1)

N, D_IN, H, D_OUT = 256, 400, 500, 10
w1 = torch.randn(D_IN, H) * 0.05
w2 = torch.randn(H, D_OUT) * 0.05
w1.requires_grad_()
w2.requires_grad_()
truth = torch.randn(D_IN, D_OUT) / 20
inputs = torch.randn(20, N, D_IN)
targets = torch.tanh(inputs @ truth)

learning_rate = 0.004
for t in range(480):
    x, y = inputs[t % 20], targets[t % 20]
    y_pred = x.mm(w1).clamp(min=0).mm(w2)
    loss = (y_pred - y).pow(2).sum(1).mean()
    loss.backward()
    with torch.no_grad():
        for w in (w1, w2):
            w -= learning_rate * w.grad
            w.grad = None
    if t % 80 == 79:
        print(t, loss.item())
