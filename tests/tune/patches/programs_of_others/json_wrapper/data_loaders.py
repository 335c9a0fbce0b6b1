import torch
from base.base_data_loader import BaseDataLoader


class DigitsDataLoader(BaseDataLoader):
    def __init__(self, batch_size, shuffle=True, validation_split=0.0, num_workers=1):
        self.dataset = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))
        super().__init__(self.dataset, batch_size, shuffle, validation_split, num_workers)
