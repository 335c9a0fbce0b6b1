"""Train on batches of forked workers: loops.py whole|early|evaluates|thread|kept"""

import sys
import threading

import torch
from _parts import loader, network, tell_memory, to_cuda, train


def main(way: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    if way == "early":  # a new loader each time, of which some batches are taken
        for _ in range(6):
            batches = iter(loader(num_workers=2, pin_memory=True))
            print(train(model, optimizer, (next(batches) for _ in range(3))))
            del batches
    elif way == "kept":
        batches = loader(num_workers=2, pin_memory=True, persistent_workers=True)
        print([train(model, optimizer, batches) for _ in range(4)])
    elif way == "evaluates":
        for _ in range(3):
            print(train(model, optimizer, loader(num_workers=2, pin_memory=True)))
            with torch.no_grad():
                found = [model(to_cuda(batch)[0]).argmax(1).cpu().numpy().shape for batch in loader()]
            print(len(found), [y.numpy().shape for _, y in loader(64)][:2], float(next(iter(loader()))[0].mean()))
    else:
        print([train(model, optimizer, loader(num_workers=2, pin_memory=True)) for _ in range(4)])
    tell_memory()


if __name__ == "__main__":
    if sys.argv[1] == "thread":
        thread = threading.Thread(target=main, args=("whole",))
        thread.start()
        thread.join()
    else:
        main(sys.argv[1])
    sys.exit(3)
