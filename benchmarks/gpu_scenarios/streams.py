"""Copy the next batch on a stream of its own, as prefetchers do: streams.py"""

import torch
from _parts import loader, network, tell_memory, train


class Prefetcher:
    """Batches on the device, copied one ahead."""

    def __init__(self, batches) -> None:
        self.batches = iter(batches)
        self.stream = torch.cuda.Stream()
        self.ahead = None
        self.copy()

    def copy(self) -> None:
        batch = next(self.batches, None)
        with torch.cuda.stream(self.stream):
            self.ahead = None if batch is None else [one.to("cuda", non_blocking=True) for one in batch]

    def __iter__(self):
        while self.ahead is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.ahead
            for one in batch:
                one.record_stream(torch.cuda.current_stream())
            self.copy()
            yield batch


model = network()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    print(train(model, optimizer, Prefetcher(loader(320, num_workers=2, pin_memory=True)), lambda batch: batch))
tell_memory()
