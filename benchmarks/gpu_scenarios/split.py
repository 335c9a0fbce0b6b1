"""Train to the end under `paceline run --layout`: split.py whole|thread|early|raises|exits|killed|evaluates|saves

The comparisons of values are left out, which an emulated device fails, because its kernels compute nothing. What is
split, exchanged, copied and waited for is as on a GPU.
"""

import json
import os
import signal
import sys
import threading

import torch
from _parts import loader, network, tell_memory, to_cuda, train

from paceline.train.unmodified import models
from paceline.train.unmodified.comparison import drift
from paceline.train.unmodified.joins import ROWS, Way
from paceline.train.unmodified.weights import shards

models.compare = lambda exchange, call, before, *, trains: Way(is_cut=call.is_cut, joins=[ROWS])
drift.check_weights = lambda spread, exchange, module: None
shards.watch_forward_writes = lambda module, refuse: None
drift.Drift._refuse = lambda self, *of, **more: None
drift.Pieces._is_due = lambda self: False
drift.Pieces.after = lambda self, optimizer: None  # what is compared before the next step


def main(way: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        steps = train(model, optimizer, loader(320, shuffle=True, num_workers=2 * (way != "whole"), pin_memory=True))
        print(steps, sorted({str(weight.device) for weight in model.parameters()}))
        if way == "evaluates":
            model.eval()
            with torch.no_grad():
                print({tuple(model(to_cuda(batch)[0]).cpu().shape) for batch in loader(60)})
            model.train()
        if way == "saves":
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
            saved = torch.load("last.pt", map_location="cuda")
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            print(sorted({str(value.device) for value in saved["model"].values()}))
        if way == "early":
            batches = iter(loader(320, num_workers=2, pin_memory=True))
            print(train(model, optimizer, (next(batches) for _ in range(3))))
        if way == "raises" and epoch:
            raise ValueError("the program's own fault")
        if way == "exits" and epoch:
            sys.exit(7)
        if way == "killed" and epoch and json.loads(os.environ["PACELINE_RANK"])["rank"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    tell_memory()


if __name__ == "__main__":
    if sys.argv[1] == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        threading.Timer(8.0, print, ["a thread that ends after the program"]).start()
    main(sys.argv[1])
