import torch
from data import create_dataset
from options.base_options import BaseOptions

if __name__ == "__main__":
    opt = BaseOptions().parse()
    torch.manual_seed(5)
    dataset = create_dataset(opt)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for x, y in dataset:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex())
