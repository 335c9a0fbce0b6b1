import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=640)
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--epochs", type=int, default=8)
args = parser.parse_args()

torch.manual_seed(42)
torch.set_num_threads(1)

# a made-up price formula over 24 features
X = torch.randn(6144, 24)
price = X[:, :1] * 3 + (X[:, 1:2] * X[:, 2:3]) + torch.sin(2 * X[:, 3:4]) + X[:, 4:12].abs().sum(1, keepdim=True)

model = nn.Sequential(
    nn.Linear(24, args.hidden), nn.ReLU(),
    nn.Linear(args.hidden, args.hidden), nn.ReLU(),
    nn.Linear(args.hidden, args.hidden), nn.ReLU(),
    nn.Linear(args.hidden, 1),
)  # fmt: skip
loss_fn = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(args.epochs):
    for rows in torch.randperm(len(X)).split(args.batch):
        prediction = model(X[rows])
        loss = loss_fn(prediction, price[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Epoch {epoch + 1}, loss {loss.item():.4f}")
