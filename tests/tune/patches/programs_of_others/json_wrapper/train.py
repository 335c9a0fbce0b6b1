import argparse
import json

import data_loaders
import torch


def init_obj(config, name, module, *args):
    return getattr(module, config[name]["type"])(*args, **config[name]["args"])


def main(config):
    torch.manual_seed(123)
    data_loader = init_obj(config, "data_loader", data_loaders)
    model = torch.nn.Linear(8, 3)
    optimizer = init_obj(config, "optimizer", torch.optim, model.parameters())
    for epoch in range(3):
        for x, y in data_loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item().hex())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-c", "--config", required=True)
    with open(parser.parse_args().config) as file:
        main(json.load(file))
